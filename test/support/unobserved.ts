import { Metrics } from "../../src/telemetry/metrics.ts";
import { NO_TRACING } from "../../src/telemetry/tracing.ts";

/** For parts that count and trace, in tests that look at neither. */
export const unobserved = () => ({ metrics: new Metrics(), tracing: NO_TRACING });
