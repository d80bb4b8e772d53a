import { LINE_MS_MAX } from './transcribe-openai.ts'
import type { UpstreamConfig } from './upstream.ts'

/** How the local model server is called: it keeps its own clocks, and a call's deadline is the caller's. */
export function localConfig(path: string, concurrency: number): UpstreamConfig {
  return {
    type: 'openai',
    base_url: `http://local-model-server${path}`,
    headers: {},
    timeouts: {
      connect_ms: 5_000,
      first_token_ms: LINE_MS_MAX,
      between_tokens_ms: LINE_MS_MAX,
      total_ms: LINE_MS_MAX,
    },
    concurrency,
    breaker: { failures: 5, reset_ms: 1_000 },
    force_usage: false,
  }
}
