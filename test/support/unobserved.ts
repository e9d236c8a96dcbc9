import { Metrics } from "../../src/metrics.ts";
import { NO_TRACING } from "../../src/tracing.ts";

/** For parts that count and trace, in tests that look at neither. */
export const unobserved = () => ({ metrics: new Metrics(), tracing: NO_TRACING });
