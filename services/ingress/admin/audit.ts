import type { Call, IngressContext } from '#services/ingress/calls/call.ts'
import { projectIdOf } from '#shared/keys/keys.ts'

type Action =
  | 'cancel_job'
  | 'cancel_request'
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

/** Logs one line per change by an operator: the key, the operation and its target. */
export function audit(
  { log }: IngressContext,
  { key, requestId }: Call,
  action: Action,
  on: Record<string, unknown>,
): void {
  log.info(
    { action, key_id: key.id, project_id: projectIdOf(key), request_id: requestId, ...on },
    'admin API action performed',
  )
}
