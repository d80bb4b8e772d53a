import { z } from 'zod'
import { newId } from '#shared/lib/id.ts'

const Count = z.int().min(0)

/**
 * Limits of a project or a key over all ingresses. If a limit is absent, then the default of the settings applies; 0 allows
 * nothing.
 */
export const Limits = z.strictObject({
  requests_per_minute: Count.optional().describe('Calls'),
  tokens_per_minute: Count.optional().describe('Tokens in and out'),
  running: Count.optional().describe('Maximum concurrent calls and durable jobs'),
  queued: Count.optional().describe('Maximum queued durable jobs'),
  scheduled: Count.optional().describe('Maximum scheduled durable jobs (run_at)'),
  budget_usd_per_month: z
    .number()
    .min(0)
    .optional()
    .describe('Maximum cost per UTC month, by the prices of models.yaml'),
})
export type Limits = z.infer<typeof Limits>

/** A project is the tenant: it owns jobs, idempotency keys, limits, usage and webhook secrets. A project may have many keys. */
export const Project = z.strictObject({
  id: z.string().min(1),
  name: z.string().optional().describe('Owner or purpose'),
  created_at: z.int().describe('Unix seconds'),
  limits: Limits.default({}),
})
export type Project = z.infer<typeof Project>

export interface ProjectChange {
  readonly name?: string | undefined
  readonly limits?: Limits
}

/** Maximum projects of one store. Every ingress holds all projects in memory. */
export const PROJECTS_MAX = 10_000

export function newProject({ id, name, limits = {} }: Partial<Pick<Project, 'id' | 'name' | 'limits'>> = {}): Project {
  const created_at = Math.floor(Date.now() / 1_000)
  return { id: id ?? newId('proj_', 16), ...(name !== undefined && { name }), created_at, limits }
}

/** The project of a key. A key without a project is its own project, whose id is that of the key. */
export function projectIdOf(key: { readonly id: string; readonly project?: string | undefined }): string {
  return key.project ?? key.id
}
