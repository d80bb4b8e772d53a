import { createParser, type EventSourceMessage } from 'eventsource-parser'
import { TEST_KEY } from '../../support/stack.ts'

const TEXT = 'one two three four five six seven eight nine ten'
/** First words of {@link AttachedCall.problem} if the answer has another text than expected. */
export const WRONG = 'the output is'
/** Timeout of a call, which then counts as failed. */
const CALL_MS = 60_000

/** Outcome of one attached call for its caller. */
export interface AttachedCall {
  readonly startedAt: number
  /** Longest time in ms without an event of the stream, from the start to the end of the call. Headers and comments are no events. */
  readonly silentMs: number
  /** Problem of the answer. Empty if the caller received the expected text completely and exactly once. */
  readonly problem: string
}

/** Starts callers that repeat a streamed call of about a second. Each caller uses the ingresses in turn. */
export function startAttached(ingresses: readonly string[], callers: number) {
  const calls: AttachedCall[] = []
  let isStopped = false
  const repeat = async (turn: number) => {
    for (let i = turn; !isStopped; i++) calls.push(await callOnce(ingresses[i % ingresses.length] ?? ''))
  }
  const all = Promise.all(Array.from({ length: callers }, (_, turn) => repeat(turn)))
  return {
    calls,
    async stop() {
      isStopped = true
      await all
      return calls
    },
  }
}

async function callOnce(url: string): Promise<AttachedCall> {
  const startedAt = Date.now()
  let [at, silentMs] = [performance.now(), 0]
  const onOutput = () => {
    const now = performance.now()
    silentMs = Math.max(silentMs, now - at)
    at = now
  }
  const problem = await stream(url, onOutput).catch((error: unknown) => String((error as Error).cause ?? error))
  onOutput()
  return { startedAt, silentMs: Math.round(silentMs), problem }
}

/**
 * Makes one streamed call.
 *
 * @returns The problem of its answer; empty if there is none
 */
async function stream(url: string, onOutput: () => void): Promise<string> {
  const messages = [{ role: 'user', content: `!echo first_ms=50 delay_ms=80\n${TEXT}` }]
  const response = await fetch(`${url}/v1/chat/completions`, {
    method: 'POST',
    headers: { authorization: `Bearer ${TEST_KEY}`, 'content-type': 'application/json' },
    body: JSON.stringify({ model: 'echo-1', stream: true, messages }),
    signal: AbortSignal.timeout(CALL_MS),
  })
  if (!response.ok || !response.body) return `${response.status}: ${(await response.text()).slice(0, 200)}`
  let [text, end] = ['', '']
  const onEvent = ({ data }: EventSourceMessage) => {
    onOutput()
    end = data
    if (data !== '[DONE]') text += JSON.parse(data).choices?.[0]?.delta?.content ?? ''
  }
  const parser = createParser({ onEvent })
  const decoder = new TextDecoder()
  for await (const chunk of response.body) parser.feed(decoder.decode(chunk, { stream: true }))
  if (end !== '[DONE]') return `ended with ${end.slice(0, 200)}`
  return text === TEXT ? '' : `${WRONG} ${text}`
}
