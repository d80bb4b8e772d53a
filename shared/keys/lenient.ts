import { z } from 'zod'
import { ApiKey, Project, projectIdOf } from './keys.ts'

export const StoredKey = ApiKey.extend({ scopes: z.unknown().optional(), limits: z.unknown().optional() }).loose()
export type StoredKey = z.infer<typeof StoredKey>

export const StoredProject = Project.extend({ limits: z.unknown().default({}) }).loose()
export type StoredProject = z.infer<typeof StoredProject>

export interface ValidKeys {
  readonly keys: readonly ApiKey[]
  readonly projects: readonly Project[]
}

/**
 * Selects the keys and projects that this version supports. The generator yields, so that the caller can yield to the event loop.
 *
 * A record with an unknown field is omitted. If the record is a project, then all its keys are omitted too. The field may be a limit of a newer
 * version, or a misspelt limit, which this version would not enforce.
 *
 * @param onProblem Called with one sentence for each omitted record
 */
export function* readKnownVersion(
  keys: readonly StoredKey[],
  projects: readonly StoredProject[],
  onProblem: (problem: string) => void,
): Generator<undefined, ValidKeys> {
  const unsupported = new Set<string>()
  const known = { keys: [] as ApiKey[], projects: [] as Project[] }
  for (const project of projects) {
    const parsed = Project.safeParse(project)
    if (parsed.success) known.projects.push(parsed.data)
    else {
      unsupported.add(project.id)
      onProblem(
        `the project ${project.id}: ${whyNot(parsed.error)}. This process rejects the keys of the project until the project is fixed.`,
      )
    }
    yield
  }
  for (const key of keys) {
    const parsed = ApiKey.safeParse(key)
    if (!parsed.success)
      onProblem(`the key ${key.id}: ${whyNot(parsed.error)}. This process rejects the key until the key is fixed.`)
    else if (!unsupported.has(projectIdOf(key))) known.keys.push(parsed.data)
    yield
  }
  return known
}

export function changed<T extends object>(record: T, change: object): T {
  return Object.fromEntries(Object.entries({ ...record, ...change }).filter(([, value]) => value !== undefined)) as T
}

function whyNot({ issues }: z.ZodError): string {
  return issues.map(({ message, path }) => (path.length > 0 ? `${path.join('.')}: ${message}` : message)).join('; ')
}
