import { z } from 'zod'
import { writeJson } from '#shared/json/write.ts'
import { runToEnd } from '#shared/lib/yielding.ts'
import { answerText } from './body-text.ts'

/*
 * One result line of a batch as the cells of a table row: answer, error, finish reason and tokens. `GET /v1/batches/{id}/results` writes these cells
 * next to the custom_id. The console and the command-line tool append them to the columns of the input table (shared/tables).
 */

export interface BatchRow {
  readonly customId: string
  readonly answer: string
  readonly error: string
  /** Reason for which the answer ended, in the words of its API, such as `stop` or `length`. Empty for results without a reason. */
  readonly finishReason: string
  readonly inputTokens: number | null
  readonly outputTokens: number | null
}

const Problem = z.looseObject({ code: z.string().nullish(), type: z.string().nullish(), message: z.string() })
const ResultLine = z.looseObject({
  custom_id: z.string(),
  response: z.looseObject({ status_code: z.number(), body: z.unknown() }).nullish(),
  error: Problem.nullish(),
})
const Failure = z.looseObject({ error: Problem })

const Vector = z.looseObject({ data: z.tuple([z.looseObject({ embedding: z.unknown() })]) })
const Finished = z.looseObject({
  choices: z.tuple([z.looseObject({ finish_reason: z.string().nullish() })]).optional(),
  stop_reason: z.string().nullish(),
  incomplete_details: z.looseObject({ reason: z.string() }).nullish(),
})
const Used = z.looseObject({
  usage: z.looseObject({
    input_tokens: z.number().optional(),
    prompt_tokens: z.number().optional(),
    output_tokens: z.number().optional(),
    completion_tokens: z.number().optional(),
  }),
})

/** A result without text, such as a vector, is shown as JSON of at most `charsMax` characters. Longer JSON is replaced by `instead`. */
interface JsonLimit {
  readonly charsMax: number
  readonly instead: string
}

const UNLIMITED: JsonLimit = { charsMax: Number.POSITIVE_INFINITY, instead: '' }

/** Reads the cells of a result line in the OpenAI format. Undefined if the value is not such a line. */
export function batchRowOf(value: unknown): BatchRow | undefined {
  return runToEnd(batchRowIn(value))
}

/** Like {@link batchRowOf}, but yields to the event loop, because a result line with vectors can have tens of megabytes of JSON. */
export function* batchRowIn(value: unknown, limit = UNLIMITED): Generator<undefined, BatchRow | undefined> {
  const line = ResultLine.safeParse(value).data
  if (!line) return undefined
  const { custom_id: customId, response, error } = line
  const body = response?.body
  const failed = error ?? (response && response.status_code >= 400 ? Failure.safeParse(body).data?.error : undefined)
  const usage = Used.safeParse(body).data?.usage
  return {
    customId,
    answer: failed || !response ? '' : (answerText(body) ?? (yield* jsonIn(vectorIn(body) ?? body, limit))),
    error: failed ? `${failed.code ?? failed.type ?? 'error'}: ${failed.message}` : '',
    finishReason: failed ? '' : finishReasonOf(body),
    inputTokens: usage?.input_tokens ?? usage?.prompt_tokens ?? null,
    outputTokens: usage?.output_tokens ?? usage?.completion_tokens ?? null,
  }
}

function vectorIn(body: unknown): unknown {
  return Vector.safeParse(body).data?.data[0].embedding
}

function finishReasonOf(body: unknown): string {
  const { choices, stop_reason, incomplete_details } = Finished.safeParse(body).data ?? {}
  return choices?.[0].finish_reason ?? stop_reason ?? incomplete_details?.reason ?? ''
}

function* jsonIn(body: unknown, { charsMax, instead }: JsonLimit): Generator<undefined, string> {
  let text = ''
  for (const piece of writeJson(body)) {
    text += piece
    if (text.length > charsMax) return instead
    yield
  }
  return text
}
