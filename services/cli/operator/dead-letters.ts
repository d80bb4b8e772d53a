import type { DeadLetterView } from '#services/cli/client/admin-api.ts'
import { type Command, type Invocation, noArguments } from '#services/cli/command.ts'
import { EXIT, type ExitCode, usageError } from '#services/cli/failure.ts'
import { ageOf } from '#services/cli/text/job-text.ts'
import { plain, tableOf } from '#services/cli/text/output.ts'

const LIMIT_DEFAULT = 20
const LIMIT_MAX = 10_000
const MAX_DEFAULT = 100
const MAX_MAX = 1_000

const OPTIONS = {
  pool: { type: 'string' },
  limit: { type: 'string' },
  max: { type: 'string' },
  after: { type: 'string' },
  'dry-run': { type: 'boolean' },
} as const
const OPTION_NAMES = Object.keys(OPTIONS)

/** `sluice dead-letters` */
export const deadLetters: Command = {
  summary: 'Show records that no worker could run, put them back, or discard them',
  help: `Usage: sluice dead-letters [--pool POOL] [--limit N]
       sluice dead-letters redrive [--pool POOL] [--max N] [--after ID] [--dry-run]
       sluice dead-letters discard ID ...

Lists the records of all projects that no worker could run, newest first: when, where they came from, and why. They are no jobs,
calls of a kind that no worker knew, or jobs of another version. redrive puts back into their queues those that can still run: durable
jobs that the service can read by now. discard has letters shown no more, by their ids; it cannot be taken back. (Jobs that ran and failed: sluice jobs --all-projects --status failed.) Needs a key with the
scope admin.

Options:
  --pool POOL  only those of one pool
  --limit N    list at most so many (default ${LIMIT_DEFAULT}, most ${LIMIT_MAX})
  --max N      put back at most so many, newest first (default ${MAX_DEFAULT}, most ${MAX_MAX})
  --after ID   put back only those that are older than the letter with this id
  --dry-run    only show which would be put back

Examples:
  sluice dead-letters --pool inference
  sluice dead-letters redrive --dry-run
  sluice dead-letters discard 17 18`,
  options: OPTIONS,
  async run(invocation): Promise<ExitCode> {
    const { args, values } = invocation
    const [action, ...rest] = args
    if (action === 'discard') return await discard(invocation, rest)
    const isRedrive = action === 'redrive'
    noArguments(isRedrive ? rest : args)
    const lost = (isRedrive ? ['limit'] : ['max', 'after', 'dry-run']).find((name) => values.given().includes(name))
    if (lost !== undefined) throw usageError(`--${lost} goes ${isRedrive ? 'without' : 'with'} redrive.`)
    return isRedrive ? await redrive(invocation) : await list(invocation)
  },
}

async function list({ api, out, values }: Invocation): Promise<ExitCode> {
  const max = values.count('limit', 1, LIMIT_MAX) ?? LIMIT_DEFAULT
  const found: DeadLetterView[] = []
  for await (const one of api.admin.deadLetters({ pool: values.text('pool') }, max)) {
    if (out.isForPeople) found.push(one)
    else await out.json(one)
  }
  if (out.isForPeople) await out.write(found.length > 0 ? letterTable(found, out.columns) : 'No dead letters.\n')
  return EXIT.ok
}

async function redrive({ api, out, values }: Invocation): Promise<ExitCode> {
  const isDry = values.has('dry-run')
  const max = values.count('max', 1, MAX_MAX) ?? MAX_DEFAULT
  const asked = { pool: values.text('pool'), after: values.count('after', 0, Number.MAX_SAFE_INTEGER) }
  const { data, has_more, last_id } = await api.admin.redriveDead(asked, max, isDry)
  if (!out.isForPeople) for (const one of data) await out.json(isDry ? { ...one, dry_run: true } : one)
  else if (data.length > 0) await out.write(letterTable(data, out.columns))
  if (data.length === 0) out.note('None that can run again.')
  else if (isDry) out.note('Nothing was done. To do it, leave out --dry-run.')
  else out.note(`${data.length} went back into their queues.`)
  if (has_more) out.note(`There are older ones: --after ${last_id} takes these.`)
  return EXIT.ok
}

async function discard({ api, out, values }: Invocation, ids: readonly string[]): Promise<ExitCode> {
  const [lost] = OPTION_NAMES.filter((name) => values.given().includes(name))
  if (lost !== undefined) throw usageError(`--${lost} goes without discard.`)
  if (ids.length === 0) throw usageError('Which dead letters? Give their ids.', 'See them: sluice dead-letters')
  for (const id of ids) {
    const one = await api.admin.discardDead(id)
    if (out.isForPeople) await out.write(`${one.id} is shown no more.\n`)
    else await out.json(one)
  }
  return EXIT.ok
}

function letterTable(found: readonly DeadLetterView[], columnsMax: number): string {
  const nowMs = Date.now()
  const rows = found.map(({ id, pool, position, reason, job_id, project, created_at, bytes }) => {
    const age = ageOf(created_at, nowMs)
    return [id, age, pool ?? '', plain(reason), job_id ?? '', project ?? '', position ?? '', String(bytes)]
  })
  const head = ['letter', 'age', 'pool', 'why', 'job', 'project', 'position', 'bytes']
  return tableOf({ head, rows, spare: ['bytes', 'position', 'project'] }, columnsMax)
}
