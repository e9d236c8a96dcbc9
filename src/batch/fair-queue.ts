/**
 * Decides whose line goes next when several batches want the slots of one route.
 *
 * Weighted fair queueing on two levels: projects share the route by weight, and so do the batches of a project its part.
 * Each batch has a *start tag*: the service that it has had, divided by its weight. The smallest tag goes next and is
 * charged (start-time fair queueing: P. Goyal, H. M. Vin, H. Cheng, SIGCOMM 1996). *Virtual time* is the service that each
 * unit of weight would have had by now in the ideal, in which all batches are served at the same moment (generalized
 * processor sharing: A. Parekh, R. Gallager, 1993). A batch that comes, or comes back, starts there: it gets no credit for
 * the time it was away, and waits behind no backlog. The last start tag, which the paper uses, would stand still under a
 * stream of batches of one line each, and the others would wait until the stream ends.
 *
 * The same tags, plus the length of the next chunk, decide which batch has its next chunk claimed. If two batches have had
 * as little, the one that needs less goes first, and each chunk that is passed over comes nearer.
 *
 * Within a project, batches that may miss their deadline go before all others, the earliest first, in at most three
 * turns of four. Such a turn is not charged to the batch, so it owes nothing afterwards. In every fourth turn all are
 * equal again, so no batch waits for ever. Other projects do not pay for it.
 */
import type { BatchId } from "./batch.ts";

/** A batch that has lines for the route. */
export interface Contender {
  readonly batchId: BatchId;
  readonly project: string;
  readonly priority: number;
  readonly deadlineAtMs: number;
  readonly createdAtMs: number;
}

const URGENT_TURNS_IN_A_ROW = 3;
/** The steps of priority that double a share: from −10 to 10 it grows sixteenfold. */
const PRIORITY_STEPS_PER_DOUBLING = 5;

export const weightOf = (priority: number): number => 2 ** (priority / PRIORITY_STEPS_PER_DOUBLING);

/** What decides about the share of a batch. It may change while the batch contends. */
export interface Shares {
  readonly priority: number;
  readonly projectWeight: number;
}

/** Keeps urgent turns from taking all. */
class UrgentTurns {
  #count = 0;

  /** Whether an urgent contender goes before the others now. */
  get isOpen(): boolean {
    return this.#count < URGENT_TURNS_IN_A_ROW;
  }

  /** Counts a turn; true when it is an urgent one. */
  take(isUrgent: boolean): boolean {
    const isUrgentTurn = isUrgent && this.isOpen;
    this.#count = isUrgentTurn ? this.#count + 1 : 0;
    return isUrgentTurn;
  }
}

class Project {
  readonly name: string;
  weight = 1;
  startTag: number;
  /** The virtual time of its batches. */
  virtualTime = 0;
  flowCount = 0;
  totalWeight = 0;
  readonly urgentLines = new UrgentTurns();
  readonly urgentChunks = new UrgentTurns();

  constructor(name: string, startTag: number) {
    this.name = name;
    this.startTag = startTag;
  }
}

/** A contender and what it has had. */
export class Flow {
  readonly contender: Contender;
  readonly project: Project;
  weight: number;
  startTag: number;
  /** Whether it may miss its deadline. */
  isAtRisk = false;
  /** Whether it has a share. Lines that are retried may outlast it. */
  isJoined = false;
  /** The number of lines in the next chunk that it asks for. */
  chunkLineCount = 0;

  constructor(contender: Contender, project: Project) {
    this.contender = contender;
    this.project = project;
    this.weight = weightOf(contender.priority);
    this.startTag = project.virtualTime;
  }
}

const isEarlier = (a: Contender, b: Contender): boolean =>
  a.deadlineAtMs === b.deadlineAtMs
    ? a.createdAtMs < b.createdAtMs
    : a.deadlineAtMs < b.deadlineAtMs;

const GUEST: Contender = {
  batchId: "" as BatchId,
  project: "",
  priority: 0,
  deadlineAtMs: Number.POSITIVE_INFINITY,
  createdAtMs: Number.POSITIVE_INFINITY,
};

const projectTagOf = (flow: Flow) => flow.project.startTag;
const startTagOf = (flow: Flow) => flow.startTag;
const finishTagOf = (flow: Flow) => flow.startTag + flow.chunkLineCount / flow.weight;

export class FairQueue {
  readonly #projects = new Map<string, Project>();
  #virtualTime = 0;
  #activeProjectCount = 0;
  #activeWeight = 0;

  /** Gives the contender a share from now on, until it is removed. */
  join(contender: Contender): Flow {
    const project = this.#projectOf(contender.project);
    if (project.flowCount === 0) {
      this.#activeProjectCount++;
      this.#activeWeight += project.weight;
      project.startTag = Math.max(project.startTag, this.#virtualTime);
    }
    const flow = new Flow(contender, project);
    flow.isJoined = true;
    project.flowCount++;
    project.totalWeight += flow.weight;
    return flow;
  }

  remove(flow: Flow): void {
    const { project, weight } = flow;
    flow.isJoined = false;
    project.flowCount--;
    project.totalWeight = project.flowCount === 0 ? 0 : project.totalWeight - weight;
    if (project.flowCount > 0) return;
    this.#activeProjectCount--;
    // Differences of fractions would add up.
    this.#activeWeight = this.#activeProjectCount === 0 ? 0 : this.#activeWeight - project.weight;
  }

  /** Changes the share of a flow, and of its project, from the next line on. */
  reweigh(flow: Flow, { priority, projectWeight }: Shares): void {
    const { project } = flow;
    const weight = weightOf(priority);
    if (flow.isJoined) project.totalWeight += weight - flow.weight;
    flow.weight = weight;
    if (project.flowCount > 0) this.#activeWeight += projectWeight - project.weight;
    project.weight = projectWeight;
  }

  /** A flow without a share, for lines that belong to none that has joined. */
  guest(): Flow {
    return new Flow(GUEST, new Project(GUEST.project, this.#virtualTime));
  }

  /** A flow has a line again after a time without: if it has no share, it starts where newcomers do. */
  resume(flow: Flow): void {
    if (flow.isJoined) return;
    const { project } = flow;
    flow.startTag = Math.max(flow.startTag, project.virtualTime);
    if (project.flowCount === 0) project.startTag = Math.max(project.startTag, this.#virtualTime);
  }

  /** The flow whose turn it is, of those with a line to send. It is charged by {@link take}. */
  next(ready: readonly Flow[]): Flow | null {
    if (ready.length <= 1) return ready[0] ?? null;
    const project = firstProject(ready);
    if (project === null) return null;
    const urgent = project.urgentLines.isOpen ? mostUrgent(ready, project) : null;
    return urgent ?? smallest(ready, project, startTagOf);
  }

  /** A line of the flow goes out in its turn. */
  take(flow: Flow): void {
    if (flow.project.urgentLines.take(flow.isAtRisk)) this.#chargeProject(flow.project);
    else this.charge(flow);
  }

  /** The flow that is to have its next chunk claimed. Nothing is charged before lines go out. */
  takeChunk(waiting: readonly Flow[]): Flow | null {
    const project = firstProject(waiting);
    if (project === null) return null;
    const urgent = mostUrgent(waiting, project);
    if (project.urgentChunks.take(urgent !== null)) return urgent;
    return smallest(waiting, project, finishTagOf);
  }

  /** Charges the flow for one line, which went out because no other flow had one. */
  charge(flow: Flow): void {
    const { project } = flow;
    flow.startTag += 1 / flow.weight;
    if (project.flowCount > 0) project.virtualTime += 1 / project.totalWeight;
    this.#chargeProject(project);
  }

  #chargeProject(project: Project): void {
    project.startTag += 1 / project.weight;
    if (this.#activeProjectCount > 0) this.#virtualTime += 1 / this.#activeWeight;
  }

  #projectOf(name: string): Project {
    const known = this.#projects.get(name);
    if (known !== undefined) return known;
    // One that is away and not ahead of the others would start as a stranger does.
    for (const { flowCount, startTag, name: other } of this.#projects.values()) {
      if (flowCount === 0 && startTag <= this.#virtualTime) this.#projects.delete(other);
    }
    const project = new Project(name, this.#virtualTime);
    this.#projects.set(name, project);
    return project;
  }
}

function mostUrgent(flows: readonly Flow[], project: Project): Flow | null {
  let best: Flow | null = null;
  for (const flow of flows) {
    if (flow.project !== project || !flow.isAtRisk) continue;
    if (best === null || isEarlier(flow.contender, best.contender)) best = flow;
  }
  return best;
}

const firstProject = (flows: readonly Flow[]): Project | null =>
  smallest(flows, null, projectTagOf)?.project ?? null;

/** Returns the flow with the smallest tag, of one project or of all; the earliest of several. */
function smallest(
  flows: readonly Flow[],
  project: Project | null,
  tagOf: (flow: Flow) => number,
): Flow | null {
  let best: Flow | null = null;
  for (const flow of flows) {
    if (project !== null && flow.project !== project) continue;
    const lead = best === null ? 1 : tagOf(best) - tagOf(flow);
    if (best === null || lead > 0 || (lead === 0 && isEarlier(flow.contender, best.contender))) {
      best = flow;
    }
  }
  return best;
}
