import { z } from 'zod'

/** What happened to a key or a project, and by whom: one line for each change, never with a secret or its hash. */
export const AuditEntry = z.object({
  at: z.int().describe('Unix seconds'),
  author: z.string().describe('`cli:` and the user of the system, `key:` and the id of an admin key, or `service`'),
  action: z.string().describe('Such as key.created'),
  subject: z.string().describe('Id of what was changed'),
  project: z.string().nullable().describe('Whose it is'),
  change: z.record(z.string(), z.unknown()).describe('What was set; null: taken away'),
})
export type AuditEntry = z.infer<typeof AuditEntry>

/** What is done, before it is known when and by whom. */
export type AuditAction = Pick<AuditEntry, 'action' | 'subject' | 'project' | 'change'>

/** Who changes what nobody else asked for: the service itself. */
export const SERVICE = 'service'

/** Entries that may be asked for at once. */
export const AUDIT_LIMIT_MAX = 1_000
