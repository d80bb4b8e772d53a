import { z } from 'zod'
import { ApiKey } from './keys.ts'
import { Project, projectIdOf } from './project.ts'

/** A key as another version, or a hand, may have written it. */
export const KeptKey = ApiKey.extend({ scopes: z.unknown().optional(), limits: z.unknown().optional() }).loose()
export type KeptKey = z.infer<typeof KeptKey>

/** A project as another version, or a hand, may have written it. */
export const KeptProject = Project.extend({ limits: z.unknown().default({}) }).loose()
export type KeptProject = z.infer<typeof KeptProject>

/** Keys and projects of a store. */
export interface Known {
  readonly keys: readonly ApiKey[]
  readonly projects: readonly Project[]
}

/**
 * What this version understands of a store, to be read in turns: there may be many. A key or project with what it does not know is left out, and so are the keys of
 * such a project: it may be a limit, of a newer version or misspelt, which nobody would keep.
 *
 * @param onProblem Hears of each that is left out, in one sentence.
 */
export function* readKnownVersion(
  keys: readonly KeptKey[],
  projects: readonly KeptProject[],
  onProblem: (problem: string) => void,
): Generator<undefined, Known> {
  const strange = new Set<string>()
  const known = { keys: [] as ApiKey[], projects: [] as Project[] }
  for (const project of projects) {
    const parsed = Project.safeParse(project)
    if (parsed.success) known.projects.push(parsed.data)
    else {
      strange.add(project.id)
      onProblem(`the project ${project.id}: ${whyNot(parsed.error)}. Its keys are not valid here until this is mended.`)
    }
    yield
  }
  for (const key of keys) {
    const parsed = ApiKey.safeParse(key)
    if (!parsed.success)
      onProblem(`the key ${key.id}: ${whyNot(parsed.error)}. It is not valid here until this is mended.`)
    else if (!strange.has(projectIdOf(key))) known.keys.push(parsed.data)
    yield
  }
  return known
}

/** A record with a change made to it: fields that are undefined in the change are gone. */
export function changed<T extends object>(record: T, change: object): T {
  return Object.fromEntries(Object.entries({ ...record, ...change }).filter(([, value]) => value !== undefined)) as T
}

function whyNot({ issues }: z.ZodError): string {
  return issues.map(({ message, path }) => (path.length > 0 ? `${path.join('.')}: ${message}` : message)).join('; ')
}
