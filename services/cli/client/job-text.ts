import { z } from 'zod'
import { plain } from '#services/cli/text/output.ts'
import { durationRangeText } from '#shared/lib/duration.ts'
import { usageTexts } from './batch-text.ts'
import { type BatchView, batchIdOf, type EndRange } from './http.ts'
import { endedAt, exitCodeOf, type JobView, queueText } from './job.ts'

/*
 * Extracts readable text from streamed chunks and results of all endpoints. A result of an unknown shape is shown as
 * JSON, and a chunk of an unknown shape is not shown. With `--json`, commands print the original JSON and do not use
 * this module.
 */

const OUTPUT_CHARS_MAX = 300

const Choices = z.looseObject({ choices: z.array(z.looseObject({ index: z.number().default(0) })) })
const Content = z.looseObject({ content: z.string() })
const BlockDelta = z.looseObject({ type: z.literal('content_block_delta'), delta: z.looseObject({ text: z.string() }) })
const TranscriptDelta = z.looseObject({ type: z.literal('transcript.text.delta'), delta: z.string() })
const OutputText = z.looseObject({ stream: z.enum(['stdout', 'stderr']), text: z.string() })
const Blocks = z.looseObject({ content: z.array(z.looseObject({ type: z.string(), text: z.string().optional() })) })
const Transcript = z.looseObject({ text: z.string() })
const Tokens = z.union([
  z.object({ input_tokens: z.number(), output_tokens: z.number() }),
  z
    .object({ prompt_tokens: z.number(), completion_tokens: z.number() })
    .transform((usage) => ({ input_tokens: usage.prompt_tokens, output_tokens: usage.completion_tokens })),
])
const Printed = z.looseObject({ stdout: z.string(), stderr: z.string() })

/**
 * Returns the text in one chunk of streamed output, or an empty text. If the chunk has several choices, only the first
 * is read.
 */
export function textOf(chunk: unknown): string {
  const block = BlockDelta.safeParse(chunk).data?.delta.text ?? TranscriptDelta.safeParse(chunk).data?.delta
  return block ?? OutputText.safeParse(chunk).data?.text ?? choiceText(chunk, 'delta') ?? ''
}

export function resultText({ result }: JobView): string {
  if (result === null || result === undefined) return ''
  const blocks = Blocks.safeParse(result).data?.content.map(({ text }) => text ?? '')
  const printed = Printed.safeParse(result).data
  if (printed) return printed.stdout + printed.stderr
  return choiceText(result, 'message') ?? blocks?.join('') ?? Transcript.safeParse(result).data?.text ?? pretty(result)
}

function choiceText(value: unknown, field: 'delta' | 'message'): string | undefined {
  const choices = Choices.safeParse(value).data?.choices
  return Content.safeParse(choices?.find(({ index }) => index === 0)?.[field]).data?.content
}

function pretty(value: unknown): string {
  return `${JSON.stringify(value, null, 2)}\n`
}

/** @param batch The batch that the job runs. Undefined for other jobs, and for batches of other projects */
export function describeJob(job: JobView, batch?: BatchView): string {
  const { progress, error } = job
  const percent = typeof progress?.percent === 'number' ? `${Math.round(progress.percent)} %` : ''
  const isBatch = isOfBatch(job)
  const isEnded = exitCodeOf(job) !== undefined
  const fields: [string, string | null | undefined][] = [
    ['id', isBatch ? batchIdOf(job.id) : job.id],
    ['project', job.project],
    ['status', `${job.status}${queueText(job)}`],
    ['pending', job.waits && `${job.waits.message} (${job.waits.reason})`],
    // The job of a batch only coordinates the requests. The worker and the output of this job are not shown, and the model is read from the batch.
    ['worker', isBatch ? '' : job.worker],
    ['endpoint', batch?.endpoint ?? job.endpoint],
    ['model', isBatch ? batch?.model : job.model],
    ['file', isBatch ? job.metadata?.name : ''],
    ['requests', isBatch ? countsText(job) : ''],
    ['attempt', attemptText(job)],
    ['parent', job.parent_id],
    ['created', timeOf(job.created_at)],
    ['started', timeOf(job.started_at)],
    ['ended', timeOf(endedAt(job))],
    // The progress of an ended batch is left out, because a summary of the batch follows this text.
    ['progress', isBatch && isEnded ? '' : [progress?.phase, percent, progress?.message].filter(Boolean).join(' ')],
    ['rate', progress && !isEnded && !batch?.waiting_for ? rateText(progress) : ''],
    ['waits for', batch?.waiting_for],
    [
      'usage',
      isBatch ? '' : usageTexts({ usage: Tokens.safeParse(job.usage).data, cost_usd: job.cost_usd }).join(', '),
    ],
    ['output', isBatch ? '' : excerpt(plain(resultText(job)))],
    ['error', error && `${error.message}${error.code ? ` (${error.code})` : ''}`],
  ]
  const shown = fields.filter(([, value]) => value)
  return shown.map(([name, value]) => `${name.padEnd(9)} ${plain(value ?? '')}\n`).join('')
}

/**
 * Returns the number of the attempt, or an empty text for a batch. A batch begins another attempt after each wait for its
 * requests, so the number of attempts of a batch does not count failures.
 */
export function attemptText(job: JobView): string {
  return job.attempt && !isOfBatch(job) ? String(job.attempt) : ''
}

function isOfBatch({ endpoint }: JobView): boolean {
  return endpoint?.endsWith('/batches') ?? false
}

function countsText({ child_counts }: JobView): string {
  const { total, completed, failed } = child_counts ?? { total: 0, completed: 0, failed: 0 }
  if (total === 0) return ''
  return `${completed + failed} of ${total} ended${failed > 0 ? `, ${failed} failed` : ''}`
}

/**
 * Rate and estimated end of a running batch, such as `ends about 14:05 (in 4 min), 1.5/s`, or `estimating…` without an estimate. Empty for
 * a job that is not a batch.
 */
export function rateText(progress: BatchRate, nowMs = Date.now()): string {
  const { requests_per_second: rate, estimated_end_at } = progress
  const ends = endsText(progress, nowMs)
  if (ends === '') return rate === null && estimated_end_at === null ? ESTIMATING : ''
  return typeof rate === 'number' ? `${ends}, ${rate}/s` : ends
}

/** Estimated end of a running batch, such as `ends in 4 s to 22 s` or `ends about 14:05 (in 4 min)`. Empty without an estimate. */
export function endsText({ estimated_end_at, estimated_end_range }: BatchRate, nowMs = Date.now()): string {
  if (estimated_end_range) return `ends in ${rangeText(estimated_end_range, nowMs)}`
  return typeof estimated_end_at === 'number' ? `ends ${endText(estimated_end_at, nowMs)}` : ''
}

/** Remaining time of a rough estimate, such as `about 10 s` or `4 s to 22 s`. */
export function rangeText({ earliest, latest }: z.infer<typeof EndRange>, nowMs = Date.now()): string {
  return durationRangeText(earliest - nowMs / 1_000, latest - nowMs / 1_000)
}

/** An estimated end, such as `about 14:05 (in 4 min)`, or `14:05:40 (in 55 s)` if it is near. */
export function endText(seconds: number, nowMs = Date.now()): string {
  const isNear = seconds * 1_000 - nowMs < NEAR_MS
  const at = new Date(seconds * 1_000).toLocaleTimeString('sv-SE')
  return `${isNear ? at : `about ${at.slice(0, 5)}`} (in ${ageOf(nowMs / 1_000, seconds * 1_000)})`
}

const NEAR_MS = 120_000

export const ESTIMATING = 'estimating…'

interface BatchRate {
  readonly requests_per_second?: number | null | undefined
  readonly estimated_end_at?: number | null | undefined
  readonly estimated_end_range?: z.infer<typeof EndRange> | null | undefined
}

function excerpt(text: string): string {
  return text.length > OUTPUT_CHARS_MAX ? `${text.slice(0, OUTPUT_CHARS_MAX).trimEnd()}…` : text
}

function timeOf(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined) return ''
  return new Date(seconds * 1_000).toLocaleString('sv-SE')
}

export function ageOf(seconds: number, nowMs: number): string {
  const age = Math.max(0, Math.floor(nowMs / 1_000 - seconds))
  if (age < 60) return `${age} s`
  if (age < 3_600) return `${Math.floor(age / 60)} min`
  return age < 86_400 ? `${Math.floor(age / 3_600)} h` : `${Math.floor(age / 86_400)} d`
}
