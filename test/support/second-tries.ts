/**
 * Names the tests that passed only at their second try, with what failed at first. CI tries a test again, so that one fault
 * of timing in thousands of tests does not hold up a change; such a fault is in the product as often as in the test, so it
 * must never go unread.
 */
import type { Reporter, TestCase, TestModule } from "vitest/node";

export class SecondTries implements Reporter {
  onTestRunEnd(modules: readonly TestModule[]): void {
    const tests = modules.flatMap((module) => [...module.children.allTests()]);
    const flaky = tests.filter((test) => test.diagnostic()?.flaky);
    if (flaky.length === 0) return;
    console.error("\nTests that failed at first and passed when run again, to be mended:");
    for (const test of flaky) console.error(reportOf(test));
  }
}

function reportOf(test: TestCase): string {
  const errors = test.result().errors ?? [];
  const reasons = errors.map(({ message, stack }) => stack ?? message);
  return [`  ${test.module.relativeModuleId}: ${test.fullName}`, ...reasons].join("\n");
}
