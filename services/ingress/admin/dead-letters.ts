import { ListDeadLetters, RedriveDeadLetters } from '#schemas/admin.ts'
import { parseBody, refuseUnknown } from '#services/ingress/body/validate.ts'
import type { Call, IngressContext } from '#services/ingress/call.ts'
import { type DeadLetter, type DeathReason, listDead, putBack } from '#shared/jobs/dead-letters.ts'
import { audit } from './audit.ts'

/** Records that are looked at for one redrive: what is older is found once these have gone. */
const LOOKED_AT_MAX = 1_000

const WHY: Readonly<Record<DeathReason, string>> = {
  not_understood:
    'Neither the worker that took it nor this process can read it: it is no job, or one of another version.',
  unknown_kind: 'A call of a kind that no worker knew. Its caller was told so, and nobody waits for it any more.',
  understood_here:
    'The worker that took it could not read it, and this process can: it is of another version than the worker.',
}

/** GET /v1/admin/dead-letters: records that no worker could run, newest first, without what they ask for. */
export async function listDeadLetters({ broker }: IngressContext, call: Call): Promise<void> {
  refuseUnknown(ListDeadLetters, call.query)
  const { limit: max, after: before, pool } = parseBody(ListDeadLetters, { ...call.query }, 'openai')
  const { letters, hasMore } = await listDead(broker, { before, max })
  const data = letters.filter((letter) => pool === undefined || letter.pool === pool).map(letterObject)
  const last_id = letters.at(-1)?.offset.toString() ?? null
  await call.reply.whole({ object: 'list', data, first_id: data[0]?.id ?? null, last_id, has_more: hasMore })
}

/** POST /v1/admin/dead-letters/redrive: back to their queues, those that are durable jobs which this version reads. */
export async function redriveDeadLetters(context: IngressContext, call: Call, body: unknown): Promise<void> {
  refuseUnknown(RedriveDeadLetters, body)
  const { pool, max, dry_run } = parseBody(RedriveDeadLetters, body, 'openai')
  const { letters, hasMore } = await listDead(context.broker, { max: LOOKED_AT_MAX })
  const wanted = letters.filter((letter) => letter.again && (pool === undefined || letter.pool === pool))
  const found = wanted.slice(0, max)
  for (const letter of dry_run ? [] : found) {
    if (call.reply.hasLeft) return
    await putBack(context.broker, letter)
    const { offset, job } = letter
    audit(context, call, 'redrive_dead_letter', { dead_letter: offset, job_id: job.id, of_project: job.tenant })
  }
  const has_more = hasMore || wanted.length > max
  await call.reply.whole({ object: 'list', data: found.map(letterObject), dry_run, has_more })
}

function letterObject({ offset, sentAtMs, pool, position, bytes, reason, job, again }: DeadLetter) {
  return {
    id: String(offset),
    object: 'dead_letter',
    pool: pool ?? null,
    position: position ?? null,
    bytes,
    reason,
    message: WHY[reason],
    job_id: job.id ?? null,
    kind: job.kind ?? null,
    model: job.model ?? null,
    project: job.tenant ?? null,
    redrivable: again !== undefined,
    created_at: Math.floor(sentAtMs / 1_000),
  }
}
