import type { HttpResponse } from '#services/cli/client/http.ts'
import { exitCodeOf, type JobView } from '#services/cli/client/job.ts'
import { type Command, type Invocation, onlyArgument } from '#services/cli/command.ts'
import { CommandError, EXIT, type ExitCode } from '#services/cli/failure.ts'
import { describeJob } from '#services/cli/text/job-text.ts'
import { type Output, plain, printable } from '#services/cli/text/output.ts'

const WAIT_SECONDS_MAX = 7 * 86_400

export const get: Command = {
  summary: 'Show a job, wait for it, or print its result',
  help: `Usage: sluice get JOB [--wait N] [--result]

Shows a job; on a terminal with the beginning of its output. With --wait or --result the exit code is 0 for completed, 1 for
failed or expired, 3 for cancelled, and 5 for a job that has not finished. A key with the admin scope sees the jobs of every
project, with the reason why they are pending and without their results.

Options:
  --wait N   wait up to N seconds until the job has finished
  --result   print only the result, byte for byte as the endpoint would return it

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
    if (!out.isHumanReadable) await out.json(job)
    else {
      await out.write(describeJob(job))
      if (exitCodeOf(job) === EXIT.ok && !isForeign(job)) out.note(`For the full result: sluice get ${job.id} --result`)
    }
    return waitSeconds === undefined ? EXIT.ok : (exitCodeOf(job) ?? EXIT.refused)
  },
}

async function printResult({ api, out }: Invocation, job: JobView): Promise<ExitCode> {
  const exit = exitCodeOf(job)
  if (exit === undefined) {
    const next = `To wait for it: sluice get ${job.id} --wait 60 --result, or sluice follow ${job.id}`
    throw new CommandError(EXIT.refused, `${job.id} has no result yet; its status is ${plain(job.status)}.`, next)
  }
  if (exit !== EXIT.ok) {
    const reason = job.error ? `: ${plain(job.error.message)}` : ''
    throw new CommandError(exit, `${job.id} ${plain(job.status)}${reason}`, `To run it again: sluice redrive ${job.id}`)
  }
  if (isForeign(job)) {
    const message = `${job.id} belongs to project ${plain(job.project ?? '')}; only keys of that project can read its result.`
    throw new CommandError(EXIT.refused, message)
  }
  const answer = await api.result(job.id)
  if (out.isHumanReadable) await writeText(answer, out)
  else for await (const chunk of answer.body) await out.write(chunk)
  return EXIT.ok
}

/** Whether the job was read from the admin API, which never returns results. */
function isForeign({ project }: JobView): boolean {
  return typeof project === 'string'
}

/** Filters control characters and adds a final line break if the output is a terminal. */
async function writeText({ body }: HttpResponse, out: Output): Promise<void> {
  const decoder = new TextDecoder()
  let last = ''
  for await (const chunk of body) {
    const text = printable(decoder.decode(chunk, { stream: true }))
    last = text.at(-1) ?? last
    await out.write(text)
  }
  if (last !== '\n') await out.write('\n')
}
