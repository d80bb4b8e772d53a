import { type Command, type Invocation, onlyArgument, type Values } from '#services/cli/command.ts'
import { CommandError, EXIT, type ExitCode, usageError } from '#services/cli/failure.ts'
import { follow, type Interrupts } from '#services/cli/following/following.ts'
import { plain } from '#services/cli/text/output.ts'
import { secondsOf } from '#services/cli/text/time.ts'

const ENDPOINT = '/v1/deep-research'
const EFFORTS: readonly string[] = ['low', 'medium', 'high']
/** How long a second Ctrl-C waits for the service. */
const CANCEL_MS = 5_000
/** What a request may ask for (docs/deep-research.md, Ask). */
const SOURCES_MAX = 50

/** `sluice research` */
export const research: Command = {
  summary: 'Research a question and print the report',
  help: `Usage: sluice research QUESTION [options]

Searches for what answers a question, reads it, and prints a report in which each statement names its source. It runs as a
durable job: a progress bar shows how far it is, the report follows. Ctrl-C ends it early: the report of what was found so far is
printed; where nothing was, the job is cancelled. A second Ctrl-C cancels it at once. With --json each event is a line of JSON.
Exits as the job ended: 0 completed, 1 failed or expired, 3 cancelled; 130 after the second Ctrl-C.

Options:
  --model ID        who writes the report (default deep-research)
  --effort LEVEL    low, medium or high: how many searches, pages and minutes (default medium)
  --for LENGTH      how long it may take, such as 30s or 5m; then it writes what it has
  --sources N       how many sources it may cite, at most ${SOURCES_MAX}
  --allow DOMAIN    search only there; may be repeated
  --deny DOMAIN     never search there; may be repeated

Examples:
  sluice research 'What happens to a job whose worker is killed?'
  sluice research 'How are webhooks signed?' --effort medium --for 5m
  sluice research 'What is a lease?' --json | jq -r 'select(.type == "job.progress").progress.message'`,
  options: {
    model: { type: 'string' },
    effort: { type: 'string' },
    for: { type: 'string' },
    sources: { type: 'string' },
    allow: { type: 'string', multiple: true },
    deny: { type: 'string', multiple: true },
  },
  async run(invocation: Invocation): Promise<ExitCode> {
    const { values, args, api, out } = invocation
    const question = onlyArgument(args, 'QUESTION')
    const body = bodyOf(values, question)
    // Without this a Ctrl-C would leave a job that nobody was told of.
    let isEarly = false
    const onInterrupt = () => {
      isEarly = true
    }
    process.once('SIGINT', onInterrupt)
    const job = await api.submit({ endpoint: ENDPOINT, body }, undefined).finally(() => {
      process.off('SIGINT', onInterrupt)
    })
    if (out.isForPeople) out.note(job.id)
    const interrupts = endingEarly(invocation, job.id)
    if (isEarly) interrupts.onFirst()
    return await follow(invocation, job.id, 0, { interrupts: { ...interrupts, isFirstOver: isEarly } })
  },
}

/** Ctrl-C asks for what there is; the second one cancels. */
function endingEarly({ api, out }: Invocation, id: string): Interrupts {
  return {
    onFirst() {
      out.note('Ending early, with a report of what was found. Ctrl-C again cancels it at once.')
      api.cancel(id).catch((error: unknown) => {
        out.note(error instanceof CommandError ? error.message : String(error))
      })
    },
    async onSecond() {
      try {
        await api.cancel(id, AbortSignal.timeout(CANCEL_MS))
        return `${plain(id)} is cancelled.`
      } catch (error) {
        const hasEnded = error instanceof CommandError && error.exit === EXIT.refused
        return hasEnded ? `${plain(id)} has ended: sluice get ${plain(id)}` : `${plain(id)} ends within a minute.`
      }
    },
  }
}

function bodyOf(values: Values, question: string): object {
  if (question.trim() === '') throw usageError('The QUESTION is empty.')
  const effort = values.text('effort')
  if (effort !== undefined && !EFFORTS.includes(effort)) {
    throw usageError(`--effort ${effort}: give one of ${EFFORTS.join(', ')}.`)
  }
  const length = values.text('for')
  const sources = values.count('sources', 1, SOURCES_MAX)
  const [allow, deny] = [values.list('allow'), values.list('deny')]
  return {
    model: values.text('model') ?? 'deep-research',
    stream: true,
    on_cancel: 'partial',
    messages: [{ role: 'user', content: question }],
    ...(effort && { reasoning_effort: effort }),
    ...(length !== undefined && { max_duration_seconds: secondsOf('for', length) }),
    ...(sources !== undefined && { max_sources: sources }),
    ...((allow.length > 0 || deny.length > 0) && { domains: { allow, deny } }),
  }
}
