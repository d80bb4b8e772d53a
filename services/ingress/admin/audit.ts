import type { Call, IngressContext } from '#services/ingress/call.ts'
import { projectIdOf } from '#shared/keys/project.ts'

/** What an operator may change. */
type Deed =
  | 'cancel_job'
  | 'redrive_job'
  | 'redrive_dead_letter'
  | 'discard_dead_letter'
  | 'retry_delivery'
  | 'create_key'
  | 'update_key'
  | 'rotate_key'
  | 'revoke_key'
  | 'create_project'
  | 'update_project'
  | 'drain_worker'
  | 'undrain_worker'
  | 'pause_model'
  | 'pause_pool'
  | 'resume_model'
  | 'resume_pool'

/** One line of the log for each change made through the operator's door: who did what to what. */
export function audit(
  { log }: IngressContext,
  { key, requestId }: Call,
  deed: Deed,
  on: Record<string, unknown>,
): void {
  log.info({ deed, key_id: key.id, project_id: projectIdOf(key), request_id: requestId, ...on }, 'operator changed')
}
