/**
 * Whose line goes next, when several batches want the places of one route.
 *
 * Weighted fair queueing on two levels: projects share the route equally, the batches of a project share what it gets
 * by weight. Each contender has a *start tag*: the service that it has had, divided by its weight. The smallest
 * goes next and is charged for it (start-time fair queueing: P. Goyal, H. M. Vin, H. Cheng, SIGCOMM 1996).
 * *Virtual time* is the service that the ideal, in which all contenders are served at the same moment, would have
 * given to each unit of weight by now (generalized processor sharing: A. Parekh, R. Gallager, 1993). Whoever comes,
 * or comes back, starts there: with no credit for the time it was away, and behind nobody's backlog. Taken from the
 * last start tag instead, as in the paper, it would stand still under a stream of batches of one line each, and the
 * others would wait until the stream ends.
 *
 * Which batch has its next chunk claimed follows the same tags, plus the length of that chunk: of two batches that have
 * had as little the one that needs less goes first, and each chunk that is passed over comes nearer.
 *
 * Within a project, batches that may miss their deadline go before all others, the earliest first, in at most
 * three turns of four. Such a turn is not charged to the batch: so it owes nothing afterwards, and in every
 * fourth turn all are equal again, and nobody is kept waiting for good. Other projects do not pay for it.
 */
import type { BatchId } from "../../batch/batch.ts";

/** A batch that has lines for the route. */
export interface Contender {
  readonly batchId: BatchId;
  readonly project: string;
  readonly priority: number;
  readonly deadlineAtMs: number;
  readonly createdAtMs: number;
}

const URGENT_TURNS_IN_A_ROW = 3;
/** So many steps of priority double a share: from −10 to 10 it grows sixteenfold. */
const PRIORITY_STEPS_PER_DOUBLING = 5;

export const weightOf = (priority: number): number => 2 ** (priority / PRIORITY_STEPS_PER_DOUBLING);

/** Keeps urgent turns from taking all. */
class UrgentTurns {
  #count = 0;

  /** Whether an urgent contender, if there is one, may go first now. */
  grant(isAnyUrgent: boolean): boolean {
    const isGranted = isAnyUrgent && this.#count < URGENT_TURNS_IN_A_ROW;
    this.#count = isGranted ? this.#count + 1 : 0;
    return isGranted;
  }
}

class Project {
  readonly name: string;
  startTag: number;
  /** Of its batches. */
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
  readonly weight: number;
  startTag: number;
  isAtRisk = false;
  /** How long the next chunk is that it asks for. */
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

const startTagOf = (flow: Flow) => flow.startTag;
const finishTagOf = (flow: Flow) => flow.startTag + flow.chunkLineCount / flow.weight;

export class FairQueue {
  readonly #projects = new Map<string, Project>();
  #virtualTime = 0;
  #activeProjectCount = 0;

  /** From now on the contender has a share, until it leaves. */
  join(contender: Contender): Flow {
    const project = this.#projectOf(contender.project);
    if (project.flowCount === 0) {
      this.#activeProjectCount++;
      project.startTag = Math.max(project.startTag, this.#virtualTime);
    }
    const flow = new Flow(contender, project);
    project.flowCount++;
    project.totalWeight += flow.weight;
    return flow;
  }

  leave({ project, weight }: Flow): void {
    project.flowCount--;
    project.totalWeight = project.flowCount === 0 ? 0 : project.totalWeight - weight;
    if (project.flowCount === 0) this.#activeProjectCount--;
  }

  /** Of the flows with a line to send the one whose turn it is, charged for that line. */
  takeLine(ready: readonly Flow[]): Flow | null {
    const project = this.#firstProject(ready);
    if (project === null) return null;
    const urgent = mostUrgent(ready, project);
    if (project.urgentLines.grant(urgent !== null)) {
      this.#chargeProject(project);
      return urgent;
    }
    const flow = smallest(ready, project, startTagOf);
    if (flow !== null) this.charge(flow);
    return flow;
  }

  /** Of the flows with a chunk to claim the one that is to have it. Nobody is charged before lines go out. */
  takeChunk(waiting: readonly Flow[]): Flow | null {
    const project = this.#firstProject(waiting);
    if (project === null) return null;
    const urgent = mostUrgent(waiting, project);
    if (project.urgentChunks.grant(urgent !== null)) return urgent;
    return smallest(waiting, project, finishTagOf);
  }

  /** Charges the flow for one line, which went out because nobody else had one. */
  charge(flow: Flow): void {
    const { project } = flow;
    flow.startTag += 1 / flow.weight;
    project.virtualTime += 1 / project.totalWeight;
    this.#chargeProject(project);
  }

  #chargeProject(project: Project): void {
    project.startTag++;
    this.#virtualTime += 1 / this.#activeProjectCount;
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

  #firstProject(flows: readonly Flow[]): Project | null {
    let first: Flow | null = null;
    for (const flow of flows) {
      const lead = first === null ? 1 : first.project.startTag - flow.project.startTag;
      const isTied = first !== null && lead === 0;
      if (first === null || lead > 0 || (isTied && isEarlier(flow.contender, first.contender))) {
        first = flow;
      }
    }
    return first?.project ?? null;
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

function smallest(
  flows: readonly Flow[],
  project: Project,
  tagOf: (flow: Flow) => number,
): Flow | null {
  let best: Flow | null = null;
  for (const flow of flows) {
    if (flow.project !== project) continue;
    const lead = best === null ? 1 : tagOf(best) - tagOf(flow);
    const isTied = best !== null && lead === 0;
    if (best === null || lead > 0 || (isTied && isEarlier(flow.contender, best.contender))) {
      best = flow;
    }
  }
  return best;
}
