import { beginning, plain } from '#services/cli/text/output.ts'
import { batchRowOf } from '#shared/kinds/batch-row.ts'
import { durationText } from '#shared/lib/duration.ts'
import { cellsOf, FORM_KEY, formIn, valuesIn } from '#shared/tables/answers.ts'
import { type BatchesApi, type BatchView, linesIn } from './http.ts'
import { endedAt } from './job.ts'

/** Failed requests of a batch with one error code. */
interface Failure {
  count: number
  /** First request with this code: the number of its row, from 1, or its custom id. */
  readonly row: number | string
  readonly message: string
}

const MESSAGE_CHARS = 200

export class Failures {
  readonly byCode = new Map<string, Failure>()

  /** @param error Code and message, separated by a colon and a space */
  add(row: number | string, error: string): void {
    const [code = '', ...message] = error.split(': ')
    const same = this.byCode.get(code)
    if (same) same.count++
    else this.byCode.set(code, { count: 1, row, message: message.join(': ') })
  }

  lines(): string[] {
    return [...this.byCode].map(([code, { count, row, message }]) => {
      const example = typeof row === 'number' ? `row ${row}` : plain(row)
      return `  ${count} ${plain(code)}, such as ${example}: ${beginning(plain(message), MESSAGE_CHARS)}`
    })
  }
}

export async function failuresOf(batches: BatchesApi, batch: BatchView): Promise<Failures> {
  const failures = new Failures()
  for await (const { customId, error } of failedRows(batches, batch)) failures.add(customId, error)
  return failures
}

/** Yields the failed requests of a batch, and the requests whose answer is invalid for the table of the batch. */
export async function* failedRows(
  batches: BatchesApi,
  { id, request_counts, invalid_answers, metadata }: BatchView,
): AsyncGenerator<{ readonly customId: string; readonly error: string }> {
  const hasInvalid = (invalid_answers ?? 0) > 0
  if (request_counts.failed === 0 && !hasInvalid) return
  const valuesOf = valuesIn(formIn(metadata?.[FORM_KEY]))
  const { body } = await batches.results(id, hasInvalid ? {} : { status: 'failed' })
  for await (const line of linesIn(body)) {
    const row = batchRowOf(JSON.parse(line.toString()))
    const error = row ? cellsOf(row, valuesOf).error : ''
    if (row && error !== '') yield { customId: row.customId, error }
  }
}

/** Counts, duration, tokens and cost of a batch on one line. */
export function batchSummary(batch: BatchView): string {
  const { status, created_at, request_counts, invalid_answers } = batch
  const { total, completed, failed } = request_counts
  const end = endedAt(batch)
  return [
    `${plain(status)}: ${completed} of ${total} requests completed`,
    `${failed} failed`,
    ...(invalid_answers ? [`${invalid_answers} with an invalid answer`] : []),
    ...(end === undefined ? [] : [`total time ${durationText(end - created_at)}`]),
    ...usageTexts(batch),
  ].join(', ')
}

export function usageTexts({ usage, cost_usd }: Pick<BatchView, 'usage' | 'cost_usd'>): string[] {
  return [
    ...(usage && usage.input_tokens + usage.output_tokens > 0
      ? [`${usage.input_tokens} input tokens`, `${usage.output_tokens} output tokens`]
      : []),
    ...(typeof cost_usd === 'number' ? [`cost $${cost_usd.toFixed(4)}`] : []),
  ]
}
