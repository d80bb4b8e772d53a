import { z } from 'zod'
import { newId } from '#shared/id.ts'

const Count = z.int().min(0)

/** What a project or a key may use, in the whole fleet. Absent: the setting that holds for all; 0: nothing. */
export const Limits = z.strictObject({
  requests_per_minute: Count.optional().describe('Calls'),
  tokens_per_minute: Count.optional().describe('Tokens in and out'),
  running: Count.optional().describe('Calls and durable jobs that run at once'),
  queued: Count.optional().describe('Durable jobs that wait to be started'),
  scheduled: Count.optional().describe('Durable jobs that wait for their time, run_at'),
  budget_usd_per_month: z.number().min(0).optional().describe('Cost by the prices of models.yaml, in a month of UTC'),
})
export type Limits = z.infer<typeof Limits>

/** Who jobs, idempotency keys, limits, usage and webhook secrets belong to: the tenant. It has any number of keys. */
export const Project = z.strictObject({
  id: z.string().min(1),
  name: z.string().optional().describe('Whose or what for, for people'),
  created_at: z.int().describe('Unix seconds'),
  limits: Limits.default({}),
})
export type Project = z.infer<typeof Project>

/** A change of a project: what is there replaces what the project has, and an undefined name takes it away. */
export interface ProjectChange {
  readonly name?: string | undefined
  readonly limits?: Limits
}

/** Projects one store holds: every ingress keeps them all in memory. */
export const PROJECTS_MAX = 10_000

/** Makes a project with an id of its own. */
export function newProject({ id, name, limits = {} }: Partial<Pick<Project, 'id' | 'name' | 'limits'>> = {}): Project {
  const created_at = Math.floor(Date.now() / 1_000)
  return { id: id ?? newId('proj_', 16), ...(name !== undefined && { name }), created_at, limits }
}

/** The project of a key. One that names none is a project of its own. */
export function projectIdOf(key: { readonly id: string; readonly project?: string | undefined }): string {
  return key.project ?? key.id
}
