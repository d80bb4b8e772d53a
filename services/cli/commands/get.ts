import type { Answer } from '#services/cli/client/http.ts'
import { exitOf, type JobView } from '#services/cli/client/job.ts'
import { type Command, type Invocation, onlyArgument } from '#services/cli/command.ts'
import { CommandError, EXIT, type ExitCode } from '#services/cli/failure.ts'
import { describeJob } from '#services/cli/text/job-text.ts'
import { type Output, plain, printable } from '#services/cli/text/output.ts'

const WAIT_SECONDS_MAX = 7 * 86_400

/** `sluice get` */
export const get: Command = {
  summary: 'Show a job, wait for it, or print its result',
  help: `Usage: sluice get JOB [--wait N] [--result]

Shows a job; on a terminal with the beginning of its answer. With --wait or --result it exits as the job ended:
0 completed, 1 failed or expired, 3 cancelled, and 5 when it has not ended yet. A key with the scope admin sees the jobs of every
project, with why they wait and without their results.

Options:
  --wait N   wait up to N seconds for its end
  --result   print its result alone, exactly as the endpoint would have answered

Examples:
  sluice get job_01J9ZQ6M8T5T9Q2W8Y5XKQ3F
  sluice get job_01J9ZQ6M8T5T9Q2W8Y5XKQ3F --wait 600 --result > answer.json`,
  options: { wait: { type: 'string' }, result: { type: 'boolean' } },
  async run(invocation): Promise<ExitCode> {
    const { values, args, api, out } = invocation
    const id = onlyArgument(args, 'JOB')
    const waitSeconds = values.count('wait', 0, WAIT_SECONDS_MAX)
    const job = await api.get(id, waitSeconds)
    if (values.has('result')) return await printResult(invocation, job)
    if (!out.isForPeople) await out.json(job)
    else {
      await out.write(describeJob(job))
      if (exitOf(job) === EXIT.ok && !isForeign(job)) out.note(`The whole result: sluice get ${job.id} --result`)
    }
    return waitSeconds === undefined ? EXIT.ok : (exitOf(job) ?? EXIT.refused)
  },
}

async function printResult({ api, out }: Invocation, job: JobView): Promise<ExitCode> {
  const exit = exitOf(job)
  if (exit === undefined) {
    const next = `Wait for it: sluice get ${job.id} --wait 60 --result, or sluice follow ${job.id}`
    throw new CommandError(EXIT.refused, `${job.id} has no result yet: it is ${plain(job.status)}.`, next)
  }
  if (exit !== EXIT.ok) {
    const why = job.error ? `: ${plain(job.error.message)}` : ''
    throw new CommandError(exit, `${job.id} ${plain(job.status)}${why}`, `Run it again: sluice redrive ${job.id}`)
  }
  if (isForeign(job)) {
    const message = `${job.id} belongs to the project ${plain(job.project ?? '')}: its result is for the keys of that project alone.`
    throw new CommandError(EXIT.refused, message)
  }
  const answer = await api.result(job.id)
  if (out.isForPeople) await writeText(answer, out)
  else for await (const chunk of answer.body) await out.write(chunk)
  return EXIT.ok
}

/** Whether it came through the operator's door, which shows no results. */
function isForeign({ project }: JobView): boolean {
  return typeof project === 'string'
}

/** Byte for byte is for programs: a terminal wants a last line that ends, and nothing it would obey. */
async function writeText({ body }: Answer, out: Output): Promise<void> {
  const decoder = new TextDecoder()
  let last = ''
  for await (const chunk of body) {
    const text = printable(decoder.decode(chunk, { stream: true }))
    last = text.at(-1) ?? last
    await out.write(text)
  }
  if (last !== '\n') await out.write('\n')
}
