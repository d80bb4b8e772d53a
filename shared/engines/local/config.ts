import type { UpstreamConfig } from '#schemas/models.ts'

/** Longer than any deadline. */
const CALL_MS_MAX = 24 * 3_600_000

/** How the local model server is called: it keeps its own clocks, and a call's deadline is the caller's. */
export function localConfig(path: string, concurrency: number): UpstreamConfig {
  return {
    type: 'openai',
    base_url: `http://local-model-server${path}`,
    headers: {},
    timeouts: {
      connect_ms: 5_000,
      first_token_ms: CALL_MS_MAX,
      between_tokens_ms: CALL_MS_MAX,
      total_ms: CALL_MS_MAX,
    },
    concurrency,
    breaker: { failures: 5, reset_ms: 1_000 },
    force_usage: false,
  }
}
