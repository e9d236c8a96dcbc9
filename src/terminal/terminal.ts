/** Knows the terminal: whether there is one, who may draw on it, and when the process gives it back. */
import { readFileSync } from "node:fs";
import { isDumbTerminal } from "../config/client.ts";

export const isOutputTerminal = (): boolean => process.stdout.isTTY === true;

/** Returns whether a progress bar can move on standard error. */
export const canRedraw = (): boolean => process.stderr.isTTY === true && !isDumbTerminal();

/** What Linux says of a process without a controlling terminal. */
const NO_GROUP = "-1";

/**
 * Returns whether this command may draw on the terminal, which belongs to a shell while the command is in the background.
 * It returns true on other systems than Linux, and without a controlling terminal.
 */
export function isInForeground(): boolean {
  try {
    const status = readFileSync("/proc/self/stat", "utf8");
    // The name of the command, in parentheses, may have spaces.
    const fields = status.slice(status.lastIndexOf(")") + 2).split(" ");
    const [, , group, , , foregroundGroup] = fields;
    return foregroundGroup === NO_GROUP || group === foregroundGroup;
  } catch {
    return true;
  }
}

interface Stops {
  /** Gives the terminal back. */
  readonly leave: () => void;
  /** Takes the terminal again. */
  readonly enter: () => void;
}

/** Calls these before Ctrl-Z stops the process and when it goes on. Returns a function that ends this. */
export function onStops({ leave, enter }: Stops): () => void {
  const stop = () => {
    leave();
    // Without a listener the signal stops the process.
    process.off("SIGTSTP", stop);
    process.kill(process.pid, "SIGTSTP");
  };
  const goOn = () => {
    process.off("SIGTSTP", stop);
    process.on("SIGTSTP", stop);
    enter();
  };
  process.on("SIGTSTP", stop);
  process.on("SIGCONT", goOn);
  return () => {
    process.off("SIGTSTP", stop);
    process.off("SIGCONT", goOn);
  };
}
