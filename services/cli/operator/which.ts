import type { AdminFilter } from '#services/cli/client/admin-api.ts'
import type { Values } from '#services/cli/command.ts'
import { usageError } from '#services/cli/failure.ts'
import { timeOf } from '#services/cli/text/time.ts'

/** Options by which operators name jobs of other projects. */
export const WHICH_OPTIONS = {
  'all-projects': { type: 'boolean' },
  project: { type: 'string' },
  pool: { type: 'string' },
  model: { type: 'string' },
} as const

/** The same for people. */
export const WHICH_HELP = `With a key that has the scope admin:
  --all-projects   those of every project
  --project P      those of one project, by its id or its name
  --pool POOL      of those only jobs of this pool
  --model MODEL    of those only jobs of this model`

/** The jobs of other projects that are asked for; undefined: those of the key's own. @throws CommandError */
export function adminFilterOf(values: Values): AdminFilter | undefined {
  const project = values.text('project')
  const isAll = values.has('all-projects')
  const [pool, model] = [values.text('pool'), values.text('model')]
  if (!isAll && project === undefined) {
    if (pool === undefined && model === undefined) return undefined
    throw usageError('--pool and --model narrow --all-projects or --project, and neither is given.')
  }
  if (isAll && project !== undefined) throw usageError('Give --all-projects or --project, not both.')
  const own = ['endpoint', 'group', 'metadata'].find((name) => values.given().includes(name))
  if (own !== undefined) throw usageError(`--${own} does not go with --all-projects or --project.`)
  const since = values.text('since')
  return {
    project,
    pool,
    model,
    statuses: values.parts('status'),
    since: since === undefined ? undefined : timeOf('since', since, Date.now(), -1),
  }
}
