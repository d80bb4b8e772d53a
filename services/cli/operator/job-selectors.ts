import type { AdminFilter } from '#services/cli/client/admin-api.ts'
import type { Values } from '#services/cli/command.ts'
import { usageError } from '#services/cli/failure.ts'
import { timeOf } from '#services/cli/text/time.ts'

/** Options that select jobs of other projects, shared by `jobs`, `cancel` and `redrive`. */
export const JOB_SELECTOR_OPTIONS = {
  'all-projects': { type: 'boolean' },
  project: { type: 'string' },
  pool: { type: 'string' },
  model: { type: 'string' },
} as const

export const JOB_SELECTOR_HELP = `Options for keys with the admin scope:
  --all-projects   select jobs of every project
  --project P      select jobs of one project, by id or name
  --pool POOL      with either of these: only jobs in this pool
  --model MODEL    with either of these: only jobs of this model`

/** The filter for the admin API, or undefined if the command is about the key's own project. @throws CommandError */
export function adminFilterOf(values: Values): AdminFilter | undefined {
  const project = values.text('project')
  const isAllProjects = values.has('all-projects')
  const [pool, model] = [values.text('pool'), values.text('model')]
  if (!isAllProjects && project === undefined) {
    if (pool === undefined && model === undefined) return undefined
    throw usageError('--pool and --model require --all-projects or --project.')
  }
  if (isAllProjects && project !== undefined) throw usageError('Use either --all-projects or --project, not both.')
  const unsupported = ['endpoint', 'group', 'metadata'].find((name) => values.given().includes(name))
  if (unsupported !== undefined) {
    throw usageError(`--${unsupported} cannot be combined with --all-projects or --project.`)
  }
  const since = values.text('since')
  return {
    project,
    pool,
    model,
    statuses: values.parts('status'),
    since: since === undefined ? undefined : timeOf('since', since, Date.now(), -1),
  }
}
