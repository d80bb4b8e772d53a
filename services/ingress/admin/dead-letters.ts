import { ListDeadLetters, ListDeliveries, RedriveDeadLetters } from '#schemas/admin/admin.ts'
import type { WebhookDelivery } from '#schemas/durable-job.ts'
import { beginningOf } from '#services/ingress/body/problem.ts'
import { parseBody, refuseUnknown } from '#services/ingress/body/validate.ts'
import { projectIdNamed } from '#services/ingress/callers/keys.ts'
import type { Call, IngressContext } from '#services/ingress/calls/call.ts'
import { firstPage } from '#services/ingress/calls/job-list.ts'
import {
  type DeadLetter,
  type DeadLetterReason,
  discard,
  findDeadLetter,
  requeueDeadLetter,
  listDeadLetters as scanDeadLetters,
} from '#shared/jobs/dead-letters.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { audit } from './audit.ts'
import { requireOperator } from './jobs.ts'

const REASON_TEXTS: Readonly<Record<DeadLetterReason, string>> = {
  not_understood:
    'Neither the worker that received the record nor this process can parse it. The record is not a job, or is from another version of Sluice.',
  unknown_kind:
    'No worker supports this kind of call. The caller already received an error, so the call cannot be requeued.',
  understood_here:
    'The worker that received the record could not parse it, but this process can, because it runs another version of Sluice.',
}

export async function listDeadLetters({ broker }: IngressContext, call: Call): Promise<void> {
  refuseUnknown(ListDeadLetters, call.query)
  const { limit: max, after: before, pool } = parseBody(ListDeadLetters, { ...call.query }, 'openai')
  const { page, next } = await firstPage(before?.toString(), async (cursor) => {
    const query = { before: cursor === undefined ? undefined : Number(cursor), max }
    const found = await scanDeadLetters(broker, { ...query, isMatch: (letter) => isOf(pool, letter) })
    return { page: found.letters, next: found.next?.toString() ?? null }
  })
  const data = page.map(letterObject)
  const last_id = next ?? page.at(-1)?.offset.toString() ?? null
  const has_more = next !== null
  await call.reply.whole({ object: 'list', data, first_id: data[0]?.id ?? null, last_id, has_more })
}

/**
 * POST /v1/admin/dead-letters/redrive: requeues the dead letters of durable jobs that this version of Sluice can read.
 */
export async function redriveDeadLetters(context: IngressContext, call: Call, body: unknown): Promise<void> {
  refuseUnknown(RedriveDeadLetters, body)
  const { pool, max, dry_run, after: before } = parseBody(RedriveDeadLetters, body, 'openai')
  const isWanted = (letter: DeadLetter) => letter.requeue !== undefined && isOf(pool, letter)
  const { letters, next } = await scanDeadLetters(context.broker, { before, max, isMatch: isWanted })
  for (const letter of dry_run ? [] : letters) {
    if (call.reply.isDisconnected) return
    await redriveOne(context, call, letter)
  }
  const last_id = (next ?? letters.at(-1)?.offset)?.toString() ?? null
  await call.reply.whole({
    ...{ object: 'list', data: letters.map(letterObject), dry_run },
    ...{ last_id, has_more: next !== undefined },
  })
}

/**
 * POST /v1/admin/dead-letters/{id}/redrive: requeues one dead letter.
 *
 * @throws ServiceError `not_found`; `invalid_request` if the job of the dead letter cannot run again
 */
export async function redriveDeadLetter(context: IngressContext, call: Call): Promise<void> {
  const letter = await findLetter(context, call)
  if (!letter.requeue)
    throw new ServiceError('invalid_request', `The dead letter cannot run again. ${REASON_TEXTS[letter.reason]}`)
  await redriveOne(context, call, letter)
  await call.reply.whole(letterObject(letter), 202)
}

/**
 * DELETE /v1/admin/dead-letters/{id}: discards a dead letter. Afterwards, lists and bulk redrives leave it out.
 *
 * @throws ServiceError `not_found` if the queue has no such dead letter
 */
export async function discardDeadLetter(context: IngressContext, call: Call): Promise<void> {
  const letter = await findLetter(context, call)
  await discard(context.broker, letter)
  const { offset, job } = letter
  audit(context, call, 'discard_dead_letter', { dead_letter: offset, job_id: job.id, of_project: job.tenant })
  await call.reply.whole({ id: String(offset), object: 'dead_letter.deleted', deleted: true })
}

async function redriveOne(context: IngressContext, call: Call, letter: DeadLetter): Promise<void> {
  await requeueDeadLetter(context.broker, letter)
  const { offset, job } = letter
  audit(context, call, 'redrive_dead_letter', { dead_letter: offset, job_id: job.id, of_project: job.tenant })
}

async function findLetter({ broker }: IngressContext, { params }: Call): Promise<DeadLetter> {
  const id = String(params.id)
  const letter = /^\d{1,15}$/.test(id) ? await findDeadLetter(broker, Number(id)) : undefined
  if (letter) return letter
  throw new ServiceError(
    'not_found',
    `No dead letter has the id '${beginningOf(id, 64)}'. GET /v1/admin/dead-letters lists all dead letters.`,
  )
}

function isOf(pool: string | undefined, letter: DeadLetter): boolean {
  return pool === undefined || letter.pool === pool
}

function letterObject({ offset, sentAtMs, pool, position, bytes, reason, job, requeue: again }: DeadLetter) {
  return {
    id: String(offset),
    object: 'dead_letter',
    pool: pool ?? null,
    position: position ?? null,
    bytes,
    reason,
    message: REASON_TEXTS[reason],
    job_id: job.id ?? null,
    kind: job.kind ?? null,
    model: job.model ?? null,
    project: job.tenant ?? null,
    redrivable: again !== undefined,
    created_at: Math.floor(sentAtMs / 1_000),
  }
}

export async function listDeliveries(context: IngressContext, call: Call): Promise<void> {
  refuseUnknown(ListDeliveries, call.query)
  const { limit, after, project, status } = parseBody(ListDeliveries, { ...call.query }, 'openai')
  const tenant = project === undefined ? undefined : projectIdNamed(context.keys.known, project)
  const operator = requireOperator(context)
  const { page, next } = await firstPage(after, async (cursor) => {
    const found = await operator.listDeliveries({ limit, after: cursor, tenant, state: status })
    return { page: found.deliveries, next: found.next }
  })
  const data = page.map(deliveryObject)
  const last_id = next ?? data.at(-1)?.id ?? null
  await call.reply.whole({ object: 'list', data, first_id: data[0]?.id ?? null, last_id, has_more: next !== null })
}

/** POST /v1/admin/deliveries/{id}/retry: sends a pending or failed webhook at once. A failed webhook gets all of its delivery attempts again. */
export async function retryDelivery(context: IngressContext, call: Call): Promise<void> {
  const id = String(call.params.id)
  const delivery = /^evt_[\w-]{8,100}$/.test(id) ? await requireOperator(context).retryDelivery(id) : undefined
  if (!delivery) {
    const message = `No pending or failed delivery has the id '${beginningOf(id, 100)}'. GET /v1/admin/deliveries lists all deliveries.`
    throw new ServiceError('not_found', message)
  }
  const { job_id, tenant } = delivery
  audit(context, call, 'retry_delivery', { delivery_id: id, job_id, of_project: tenant })
  await call.reply.whole(deliveryObject(delivery), 202)
}

/** Returns the delivery without its URL, except for the host, because the rest may contain a secret. */
function deliveryObject(delivery: WebhookDelivery) {
  const { id, job_id, tenant, url, type, state, tries, status, error, next_at_ms, created_at_ms } = delivery
  return {
    id,
    object: 'webhook_delivery',
    project: tenant,
    job_id: delivery.data === null ? job_id : null,
    type,
    host: URL.parse(url)?.host ?? null,
    status: state,
    attempts: tries,
    response_status: status,
    error,
    next_at: state === 'pending' ? Math.floor(next_at_ms / 1_000) : null,
    created_at: Math.floor(created_at_ms / 1_000),
    history: delivery.history.map(({ at_ms, duration_ms, ...said }) => ({
      ...{ at: Math.floor(at_ms / 1_000), duration_ms, response_status: said.status, error: said.error },
    })),
  }
}
