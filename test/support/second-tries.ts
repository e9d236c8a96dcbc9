/**
 * Names the tests that passed only at their second try. CI tries a test again, so that one fault of timing in thousands of
 * tests does not hold up a change; such a fault is in the product as often as in the test, so it must never go unread.
 */
import type { Reporter, TestModule } from "vitest/node";

export class SecondTries implements Reporter {
  onTestRunEnd(modules: readonly TestModule[]): void {
    const names = modules.flatMap((module) =>
      [...module.children.allTests()]
        .filter((test) => test.diagnostic()?.flaky)
        .map((test) => `  ${module.relativeModuleId}: ${test.fullName}`),
    );
    if (names.length === 0) return;
    console.error(`\nTests that failed at first and passed when run again, to be mended:`);
    console.error(names.join("\n"));
  }
}
