/**
 * Names the tests that failed, in the last lines, as a log is often cut to those. Before them it names the tests that passed
 * only at their second try, with what failed at first. CI tries a test again, so that one fault of timing in thousands of
 * tests does not hold up a change; such a fault is in the product as often as in the test, so it must never go unread.
 */
import type { SerializedError, TestError } from "vitest";
import type { Reporter, TestCase, TestModule } from "vitest/node";

export class FailedTests implements Reporter {
  onTestRunEnd(modules: readonly TestModule[], uncaught: readonly SerializedError[]): void {
    const tests = modules.flatMap((module) => [...module.children.allTests()]);
    const flaky = tests.filter((test) => test.diagnostic()?.flaky);
    if (flaky.length > 0) {
      console.error("\nTests that failed at first and passed when run again, to be mended:");
      for (const test of flaky) console.error(reportOf(test));
    }
    const names = [
      ...tests.filter((test) => test.result().state === "failed").map(nameOf),
      // Those failed outside a test: in an import, or in a hook of the file.
      ...modules.filter((module) => module.errors().length > 0).map(pathOf),
      ...uncaught.map(({ message }) => `  an error that was not caught: ${message}`),
    ];
    if (names.length > 0) console.error(`\nFailed:\n${names.join("\n")}`);
  }
}

function reportOf(test: TestCase): string {
  const errors = test.result().errors ?? [];
  return [nameOf(test), ...errors.map(textOf)].join("\n");
}

/** What a test was waiting for is added to the message alone. */
function textOf({ message, stack = "" }: TestError): string {
  return stack.includes(message) ? stack : `${message}\n${stack}`;
}

function nameOf(test: TestCase): string {
  return `${pathOf(test.module)}: ${test.fullName}`;
}

function pathOf(module: TestModule): string {
  return `  ${module.relativeModuleId}`;
}
