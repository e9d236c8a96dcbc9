import { Metrics } from "../../src/telemetry/metrics.ts";
import { NO_TRACING } from "../../src/telemetry/tracing.ts";

/** Metrics and tracing for tests that check neither. */
export const unobserved = () => ({ metrics: new Metrics(), tracing: NO_TRACING });
