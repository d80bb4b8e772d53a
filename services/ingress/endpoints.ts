import { countTokens } from './count-tokens.ts'
import type { JobEndpoint } from './endpoint.ts'
import { chatCompletions, messages } from './generate.ts'

/** Every endpoint whose calls become jobs: attached, durable by header or by `POST /v1/jobs`, or over a WebSocket. */
export const JOB_ENDPOINTS: readonly JobEndpoint[] = [chatCompletions, messages, countTokens]
