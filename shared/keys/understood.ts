import { z } from 'zod'
import { ApiKey } from './keys.ts'
import { Limits, Project, projectIdOf } from './project.ts'

/** A key as another version may have written it. */
export const KeptKey = ApiKey.extend({
  scopes: z.array(z.string()).optional(),
  limits: Limits.loose().optional(),
}).loose()
export type KeptKey = z.infer<typeof KeptKey>

/** A project as another version may have written it. */
export const KeptProject = Project.extend({ limits: Limits.loose().default({}) }).loose()
export type KeptProject = z.infer<typeof KeptProject>

/** Keys and projects of a store. */
export interface Known {
  readonly keys: readonly ApiKey[]
  readonly projects: readonly Project[]
}

/**
 * What this version understands of a store. A key or project with what it does not know is left out, and so are the keys of
 * such a project: it may be a limit, of a newer version or misspelt, which nobody would keep.
 *
 * @param onProblem Hears of each that is left out, in one sentence.
 */
export function understoodOf(
  keys: readonly KeptKey[],
  projects: readonly KeptProject[],
  onProblem: (problem: string) => void,
): Known {
  const strange = new Set<string>()
  const understood = projects.flatMap((project) => {
    const parsed = Project.safeParse(project)
    if (parsed.success) return parsed.data
    strange.add(project.id)
    onProblem(`the project ${project.id}: ${whyNot(parsed.error)}. Its keys are not valid here until this is mended.`)
    return []
  })
  const valid = keys.flatMap((key) => {
    const parsed = ApiKey.safeParse(key)
    if (parsed.success) return strange.has(projectIdOf(key)) ? [] : parsed.data
    onProblem(`the key ${key.id}: ${whyNot(parsed.error)}. It is not valid here until this is mended.`)
    return []
  })
  return { keys: valid, projects: understood }
}

/** A record with a change made to it: fields that are undefined in the change are gone. */
export function changed<T extends object>(record: T, change: object): T {
  return Object.fromEntries(Object.entries({ ...record, ...change }).filter(([, value]) => value !== undefined)) as T
}

function whyNot({ issues }: z.ZodError): string {
  return issues.map(({ message, path }) => (path.length > 0 ? `${path.join('.')}: ${message}` : message)).join('; ')
}
