import type { BatchPartRange, BatchPartResult, BatchRequest, Refusals } from '#schemas/batches/batch.ts'
import { readLine } from '#services/ingress/batches/check.ts'
import { type Line, linesOf } from '#services/ingress/batches/lines.ts'
import { writeJson } from '#shared/json/write.ts'
import type { Composition } from '#shared/kinds/composition.ts'
import { runYielding } from '#shared/lib/yielding.ts'
import { childJobId } from '#shared/store/job-id.ts'
import { type Outcome, outcomeLine, outcomeOf } from './outcome.ts'
import { NO_SUMS, type Sums, sumOf, usageOf } from './sums.ts'
import type { BatchTools } from './tools.ts'

/** Result files of an OpenAI batch. An Anthropic batch has only the first. */
export const SIDES = ['output', 'errors'] as const
export type Side = (typeof SIDES)[number]

export interface PartEnds {
  readonly id: string
  readonly refused: Refusals
  /** Outcome of requests that have not ended. */
  readonly undone: Outcome
  readonly composition: Composition
}

/**
 * Key of the blob with the result lines of a part. The key begins with the job id of the part, so the blob is deleted
 * together with the job.
 */
export function partBlob(id: string, side: Side): string {
  return `${id}-${side}`
}

/**
 * Writes the outcomes of the requests of a part, in order, into its two blobs. Holds only one answer in memory. Errors
 * are collected, because they are short.
 */
export async function writeLines(
  { context, lineBytesMax }: BatchTools,
  { dialect, input }: Pick<BatchRequest, 'dialect' | 'input'>,
  range: BatchPartRange,
  ends: PartEnds,
): Promise<BatchPartResult> {
  const { blobs } = context
  const errors: Buffer[] = []
  let sums: Sums = NO_SUMS
  let bytes = 0
  async function* output(): AsyncGenerator<Buffer> {
    for await (const line of linesOf(blobs, input, lineBytesMax, range)) {
      const outcome = await endOf(line, ends)
      sums = sumOf([sums, sumsOf(outcome)])
      const { customId } = await runYielding(readLine(line, { dialect, lineBytesMax }))
      const value = outcomeLine(dialect, childJobId(ends.id, String(line.number)), customId, outcome)
      const isError = dialect === 'requests' && outcome.type !== 'completed'
      for (const piece of writeJson(value)) {
        const text = Buffer.from(piece)
        if (isError) errors.push(text)
        else {
          bytes += text.length
          yield text
        }
      }
      if (isError) errors.push(LINE_FEED)
      else {
        bytes += LINE_FEED.length
        yield LINE_FEED
      }
    }
  }
  await blobs.put(partBlob(ends.id, 'output'), output())
  const joined = Buffer.concat(errors)
  await blobs.put(partBlob(ends.id, 'errors'), joined)
  return { ...sums, output_bytes: bytes, error_bytes: joined.length }
}

const LINE_FEED = Buffer.from('\n')

async function endOf({ number }: Line, { id, refused, undone, composition }: PartEnds): Promise<Outcome> {
  const refusal = refused[number]
  if (refusal) return { type: 'failed', error: refusal }
  const end = await composition.endOf(childJobId(id, String(number)), id)
  return end ? outcomeOf(end) : undone
}

function sumsOf(outcome: Outcome): Sums {
  const usage = outcome.type === 'completed' ? usageOf(outcome.usage) : NO_SUMS.usage
  return { counts: { ...NO_SUMS.counts, [outcome.type]: 1 }, usage }
}
