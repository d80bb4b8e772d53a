import { z } from 'zod'

/** One change of a key, a project or a webhook secret, with its author. An entry never contains a secret or its hash. */
export const AuditEntry = z.object({
  at: z.int().describe('Unix seconds'),
  author: z
    .string()
    .describe('Author of the change: `cli:USER` (operating system user), `key:ID` (id of an admin key) or `service`'),
  action: z.string().describe('Such as key.created'),
  subject: z.string().describe('Id of the changed object'),
  project: z.string().nullable().describe('Id of the project that owns the object'),
  change: z.record(z.string(), z.unknown()).describe('New values. null: removed'),
})
export type AuditEntry = z.infer<typeof AuditEntry>

export type AuditAction = Pick<AuditEntry, 'action' | 'subject' | 'project' | 'change'>

/** Author in audit entries of changes that no operator made, such as the creation of the first key. */
export const SERVICE = 'service'

export const AUDIT_LIMIT_MAX = 1_000
