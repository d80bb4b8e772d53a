import { CommandError, EXIT, type ExitCode, orList, plain, secondsOf, usageError } from '#services/cli/text/output.ts'
import { type Command, type Invocation, onlyArgument, type Values } from './command.ts'
import { follow, type Interrupts } from './following.ts'

const ENDPOINT = '/v1/deep-research'
const EFFORTS: readonly string[] = ['low', 'medium', 'high']
const CANCEL_TIMEOUT_MS = 5_000
const SOURCES_MAX = 50

export const research: Command = {
  summary: 'Research a question and print the report',
  help: `Usage: sluice research QUESTION [options]

Searches for sources that answer a question, reads them, and prints a report with a citation for each statement. Research runs as
a durable job with a progress bar. With --json each event is a line of JSON.

The first Ctrl-C ends the research early: a partial report is printed, or the job is cancelled if nothing was found yet. The
second Ctrl-C cancels the job at once. The exit code is 0 for completed, 1 for failed or expired, 3 for cancelled, and 130 after
the second Ctrl-C.

Options:
  --model ID        model that writes the report (default deep-research)
  --effort LEVEL    low, medium or high: limits for searches, pages and time (default medium)
  --ttl DURATION    time limit, such as 30s or 5m; at this limit, the report has only the findings so far
  --sources N       maximum number of cited sources, at most ${SOURCES_MAX}
  --allow DOMAIN    search only this domain; repeatable
  --deny DOMAIN     exclude this domain; repeatable

Examples:
  sluice research 'What happens to a job whose worker is killed?'
  sluice research 'How are webhooks signed?' --effort medium --ttl 5m
  sluice research 'What is a lease?' --json | jq -r 'select(.type == "job.progress").progress.message'`,
  options: {
    model: { type: 'string' },
    effort: { type: 'string' },
    ttl: { type: 'string' },
    sources: { type: 'string' },
    allow: { type: 'string', multiple: true },
    deny: { type: 'string', multiple: true },
  },
  async run(invocation: Invocation): Promise<ExitCode> {
    const { values, args, api, out } = invocation
    const question = onlyArgument(args, 'QUESTION')
    const body = bodyOf(values, question)
    // Without this handler, a Ctrl-C during the submission would leave a running job whose id was never printed.
    let wasInterrupted = false
    const onInterrupt = () => {
      wasInterrupted = true
    }
    process.once('SIGINT', onInterrupt)
    const job = await api.submit({ endpoint: ENDPOINT, body }, undefined).finally(() => {
      process.off('SIGINT', onInterrupt)
    })
    if (out.isHumanReadable) out.note(job.id)
    const interrupts = earlyEnd(invocation, job.id)
    if (wasInterrupted) interrupts.onFirst()
    return await follow(invocation, job.id, 0, { interrupts: { ...interrupts, wasInterrupted } })
  },
}

/** Handlers for Ctrl-C: the first one requests a partial report, and the second one cancels the job. */
function earlyEnd({ api, out }: Invocation, id: string): Interrupts {
  return {
    onFirst() {
      out.note('Ending early with a partial report. Press Ctrl-C again to cancel at once.')
      api.cancel(id).catch((error: unknown) => {
        out.note(error instanceof CommandError ? error.message : String(error))
      })
    },
    async onSecond() {
      try {
        await api.cancel(id, AbortSignal.timeout(CANCEL_TIMEOUT_MS))
        return `Cancelled ${plain(id)}.`
      } catch (error) {
        const hasFinished = error instanceof CommandError && error.exit === EXIT.refused
        return hasFinished
          ? `${plain(id)} has already finished. To show it: sluice get ${plain(id)}`
          : `The cancel request failed; ${plain(id)} ends with a partial report within a minute.`
      }
    },
  }
}

function bodyOf(values: Values, question: string): object {
  if (question.trim() === '') throw usageError('QUESTION must not be empty.')
  const effort = values.text('effort')
  if (effort !== undefined && !EFFORTS.includes(effort)) {
    throw usageError(`--effort must be ${orList(EFFORTS)}; got '${effort}'.`)
  }
  const ttl = values.text('ttl')
  const sources = values.count('sources', 1, SOURCES_MAX)
  const [allow, deny] = [values.list('allow'), values.list('deny')]
  return {
    model: values.text('model') ?? 'deep-research',
    stream: true,
    on_cancel: 'partial',
    messages: [{ role: 'user', content: question }],
    ...(effort && { reasoning_effort: effort }),
    ...(ttl !== undefined && { max_duration_seconds: secondsOf('ttl', ttl) }),
    ...(sources !== undefined && { max_sources: sources }),
    ...((allow.length > 0 || deny.length > 0) && { domains: { allow, deny } }),
  }
}
