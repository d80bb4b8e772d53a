import { PoolName } from '#schemas/job.ts'
import type { Call, IngressContext } from '#services/ingress/calls/call.ts'
import { modelNotFound } from '#services/ingress/calls/endpoint.ts'
import { ServiceError } from '#shared/lib/error.ts'
import type { PauseTarget } from '#shared/store/operator.ts'
import { audit } from './audit.ts'

/** GET /v1/admin/pauses: paused models and pools, oldest pause first. */
export async function listPauses({ pauses }: IngressContext, call: Call): Promise<void> {
  const data = pauses.all.map((pause) => ({
    object: 'pause',
    target: pause.target,
    id: pause.id,
    by_key: pause.by,
    since: Math.floor(pause.since_ms / 1_000),
    persistent: pauses.isPersistent,
  }))
  await call.reply.whole({ object: 'list', data, has_more: false })
}

/**
 * POST /v1/admin/models/{id}/pause: no more jobs of the model are started.
 *
 * @throws ServiceError `model_not_found`
 */
export async function pauseModel(context: IngressContext, call: Call): Promise<void> {
  await change(context, call, modelIn(context, call), true)
}

export async function resumeModel(context: IngressContext, call: Call): Promise<void> {
  await change(context, call, resumedIn(context, call), false)
}

/**
 * POST /v1/admin/pools/{pool}/pause: no more jobs of the pool are started.
 *
 * @throws ServiceError `not_found`
 */
export async function pausePool(context: IngressContext, call: Call): Promise<void> {
  await change(context, call, poolIn(call), true)
}

export async function resumePool(context: IngressContext, call: Call): Promise<void> {
  await change(context, call, poolIn(call), false)
}

async function change(context: IngressContext, call: Call, target: PauseTarget, isPaused: boolean): Promise<void> {
  const { jobs, pauses } = context
  await pauses.change(target, isPaused, call.key.id, (record) => jobs.presence.send(record))
  audit(context, call, `${isPaused ? 'pause' : 'resume'}_${target.target}`, { [target.target]: target.id })
  await call.reply.whole({ object: 'pause', ...target, paused: isPaused, persistent: pauses.isPersistent })
}

/** Model in the path, by id or alias. The pause applies to the model, not to the alias. */
function modelIn(context: IngressContext, call: Call): PauseTarget {
  const name = String(call.params.id)
  const model = context.models.find(name)
  // The message lists all models, because operators may see models that their key may not call.
  if (!model) throw modelNotFound(context, { ...call.key, models: undefined }, name)
  return { target: 'model', id: model.id }
}

/** Target of a resume. The catalogue may no longer contain a paused model. */
function resumedIn(context: IngressContext, call: Call): PauseTarget {
  const id = String(call.params.id)
  const isPaused = context.pauses.all.some((pause) => pause.target === 'model' && pause.id === id)
  return isPaused ? { target: 'model', id } : modelIn(context, call)
}

function poolIn(call: Call): PauseTarget {
  const pool = PoolName.safeParse(call.params.id)
  if (pool.success) return { target: 'pool', id: pool.data }
  throw new ServiceError('not_found', `No such pool exists. Known pools: ${PoolName.options.join(', ')}.`)
}
