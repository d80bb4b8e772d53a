import { BatchesApi, type BatchView } from '#services/cli/client/batches-api.ts'
import type { Progress } from '#services/cli/client/job.ts'
import type { Invocation } from '#services/cli/command.ts'
import { EXIT, type ExitCode } from '#services/cli/failure.ts'
import { plain } from '#services/cli/text/output.ts'
import { follow } from './following.ts'

const ERRORS_SHOWN_MAX = 10

/** Follows a batch and prints a summary. @returns The exit code for the batch's final status */
export async function followBatch(invocation: Invocation, id: string, after: number): Promise<ExitCode> {
  const { api, out } = invocation
  const batches = new BatchesApi(api.http)
  const exit = await follow(invocation, id, after, { pollProgress: async () => progressOf(await batches.get(id)) })
  const ended = await batches.get(id)
  for (const line of linesOf(ended)) out.note(line)
  return exit === EXIT.ok ? exitCodeOf(ended) : exit
}

function progressOf({ status, request_counts: { total, completed, failed } }: BatchView): Progress {
  const done = completed + failed
  const failures = failed > 0 ? `, ${failed} failed` : ''
  const message = total > 0 ? `${done} of ${total} requests finished${failures}` : null
  return { phase: status, percent: total > 0 ? (100 * done) / total : null, message }
}

function exitCodeOf({ status }: BatchView): ExitCode {
  if (status === 'completed') return EXIT.ok
  return status === 'cancelled' ? EXIT.cancelled : EXIT.failed
}

function linesOf({ id, status, errors, created_at, completed_at, request_counts: counted }: BatchView): string[] {
  const { total, completed, failed } = counted
  const problems = (errors?.data ?? []).slice(0, ERRORS_SHOWN_MAX).map(({ line, message }) => {
    return plain(line == null ? message : `line ${line}: ${message}`)
  })
  const duration = completed_at == null ? '' : `, total time ${completed_at - created_at || '< 1'} s`
  const counts = `${plain(status)}: ${completed} of ${total} requests completed, ${failed} failed${duration}`
  return [counts, ...problems, ...(completed + failed > 0 ? [`Results: sluice results ${id}`] : [])]
}
