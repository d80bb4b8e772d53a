import { newId } from '#shared/lib/id.ts'
import { childJobId, REAPER_LEASE } from '#shared/store/jobs.ts'
import { ALL_TENANTS, type HeldAttempt, type ListQuery, type Store } from '#shared/store/store.ts'
import { type Layout, MANY_TENANT, manyId, PARENT } from './many-jobs.ts'
import { alive, claimed, HOUR_MS, newJob } from './stores.ts'

const OUTPUT = [{ type: 'job.output.delta' as const, data: { text: 'hello' } }]
/** Number of events of one job. The number is so high that the store needs more than one statement to erase them. */
const MANY_EVENTS = 2_100
const POLICY = { crashesMax: 3, cancelGraceMs: 10_000, deadlineGraceMs: 10_000 }
const WEBHOOK = { url: 'https://example.com', events: ['job.started', 'job.completed'] }
const STATES = ['queued', 'scheduled', 'in_progress', 'waiting', 'completed', 'failed', 'cancelled', 'expired'] as const

/** Calls every method of the store, with the many jobs of `fillStatements` in the tables. */
export async function useStore(store: Store, layout: Layout): Promise<void> {
  await moveJobs(store)
  await moveFamilies(store)
  await sweep(store)
  await read(store, layout)
  await deliver(store)
  await operate(store, layout)
  for (let turns = 0; turns < 3; turns++) await store.purge()
}

async function moveJobs(store: Store): Promise<void> {
  const owner = await alive(store, newId('boot_'))
  const run = async (changes = {}): Promise<HeldAttempt> => {
    const job = newJob(changes)
    await store.create(job)
    return await claimed(store, job.id, owner)
  }
  const key = { scope: 'POST /v1/jobs', key: newId(''), fingerprint: 'f', keepMs: HOUR_MS }
  await store.create(newJob(), key)
  await store.create(newJob(), key)
  const done = await run({ webhook: WEBHOOK })
  await store.append(done, OUTPUT)
  await store.append(done, OUTPUT)
  await store.append({ ...done, chunk: 1 }, Array.from({ length: MANY_EVENTS }, () => OUTPUT).flat())
  await store.complete({ ...done, chunk: 2 }, { result: 1, output: OUTPUT })
  await store.setMetadata(MANY_TENANT, done.id, { a: 'b' })
  await store.erase(MANY_TENANT, done.id)
  const failed = await run()
  await store.fail(failed, { error: { code: 'upstream_error', message: '', param: null } })
  await store.redrive(MANY_TENANT, failed.id, newJob().id)
  await store.retry(await run(), { error: { code: 'upstream_error', message: '', param: null }, delayMs: 1 })
  await store.handBack(await run())
  const cancelled = await run()
  await store.cancel(MANY_TENANT, cancelled.id)
  await store.renew({ boot: owner, role: 'inference', slots: 4, version: 'test', draining: false, leaseMs: 9_000 })
  await store.honourCancel(cancelled)
  await store.create(newJob())
  await store.claimNext(
    { pool: 'inference', kind: newJob().kind, model: newJob().model, priority: 'normal' },
    owner,
    10,
  )
  await store.deregister(owner)
}

async function moveFamilies(store: Store): Promise<void> {
  const owner = await alive(store, newId('boot_'))
  const job = newJob()
  await store.create(job)
  const run = await claimed(store, job.id, owner)
  const step = { key: 'a', kind: 'search', output: { value: 1 }, cost: {} }
  await store.addStep(run, step, OUTPUT)
  await store.addStep(run, step, OUTPUT)
  const ids = ['a', 'b'].map((key) => childJobId(job.id, key))
  for (const [nth, id] of ids.entries()) {
    const child = { id, pool: 'inference', kind: 'generate', endpoint: '/v1', model: 'echo-1', request: null } as const
    await store.submitChild({ ...run, chunk: 1 + nth }, child)
    await store.submitChild({ ...run, chunk: 1 + nth }, child)
  }
  await store.findStep(job.id, 'a')
  await store.findMade(job.tenant, { scope: 'POST /v1/jobs', key: 'none', fingerprint: 'f', keepMs: 60_000 })
  await store.listSteps(MANY_TENANT, job.id)
  await store.listRecordedSteps(MANY_TENANT, job.id, 0, 20)
  await store.listChildren(MANY_TENANT, job.id)
  await store.countChildren(MANY_TENANT, [job.id, PARENT], 0)
  await store.park({ ...run, chunk: 3 }, { ids, wrapUpMs: 1_000 })
  await store.wake(job.id)
  await store.cancel(MANY_TENANT, job.id)
  await store.settle(job.id)
  await store.cancelChildren(job.id, 100)
  await store.settle(job.id)
  await store.forgetChildren(job.id)
  await store.deregister(owner)
}

async function sweep(store: Store): Promise<void> {
  await store.holdLease(REAPER_LEASE, 'scheduler', 5_000)
  await store.startDue(500)
  await store.takeUnpublished('inference', 30_000, 500)
  await store.expire(500)
  await store.wakeDue(500)
  await store.timeOutWaiting(500)
  await store.listUnsettled(500)
  await store.reap('scheduler', POLICY, 500)
  await store.releaseLease(REAPER_LEASE, 'scheduler')
}

async function read(store: Store, layout: Layout): Promise<void> {
  const middle = manyId(layout, Math.floor(layout.jobs / 2))
  await store.find(MANY_TENANT, middle)
  await store.find(ALL_TENANTS, middle)
  await store.findContent(MANY_TENANT, middle)
  await store.findInput(MANY_TENANT, middle)
  await store.findResultText(MANY_TENANT, middle)
  await store.findRequests(MANY_TENANT, [middle], 1_024)
  await store.listEvents(MANY_TENANT, middle, 0, 100)
  await store.isPast(MANY_TENANT, middle)
  await store.depth()
  const { pool, kind, model } = newJob()
  await store.tenants.depth()
  await store.tenants.queued({ pool, kind, model, priority: 'normal' })
  await store.tenants.positions({ pool, kind, model, priority: 'normal' }, MANY_TENANT)
  await store.tenants.running(MANY_TENANT)
  await store.tenants.waitingOfKey('key_b')
  await store.tenants.isWaiting({ pool, kind, model, priority: 'normal' })
  await store.queuedModels()
  for (const query of listings(middle)) await store.list(MANY_TENANT, query)
  // All jobs near `middle` are child jobs, which `isOwn` excludes. The store must therefore skip many rows.
  const own = { limit: 100, endpoint: '/v1/chat/completions', states: ['completed' as const], isOwn: true }
  for (const order of ['asc', 'desc'] as const) {
    await store.list(MANY_TENANT, { ...own, order })
    await store.list(MANY_TENANT, { ...own, order, after: middle })
  }
  await store.list('key_b', { limit: 100 })
  for (const states of [undefined, ['failed' as const], STATES]) {
    for (const order of ['asc', 'desc'] as const) {
      const query = { limit: 100, order, isOwn: true, ...(states && { states }) }
      await store.list(MANY_TENANT, query)
      await store.list('key_b', { ...query, after: middle })
      await store.list(MANY_TENANT, { ...query, endpoint: '/v1/embeddings' })
    }
  }
}

/** Every combination of filters, with the rarest values. */
function listings(middle: string): ListQuery[] {
  const choices = <T>(...values: T[]) => values
  return choices<ListQuery['states']>(undefined, ['failed'], ['cancelled', 'expired'], STATES).flatMap((states) =>
    choices(undefined, '/v1/embeddings').flatMap((endpoint) =>
      choices(undefined, PARENT).flatMap((parentId) =>
        choices(undefined, middle).flatMap((after) =>
          choices('asc' as const, 'desc' as const).map((order) => ({
            limit: 100,
            order,
            ...(states && { states }),
            ...(endpoint !== undefined && { endpoint }),
            ...(parentId !== undefined && { parentId }),
            ...(after !== undefined && { after }),
          })),
        ),
      ),
    ),
  )
}

/** Calls the queries of the admin API, once for all projects and once for one project, with values that few rows have. */
async function operate({ operator }: Store, layout: Layout): Promise<void> {
  const middle = manyId(layout, Math.floor(layout.jobs / 2))
  const states = [undefined, ['failed'], ['queued', 'scheduled'], ['in_progress', 'waiting'], ['cancelled', 'expired']]
  for (const tenant of [undefined, MANY_TENANT, 'key_b']) {
    for (const asked of [...states, STATES]) {
      const query = { limit: 100, tenant, states: asked as ListQuery['states'], model: 'rare' }
      await operator.listJobs(query)
      await operator.listJobs({ ...query, isOwn: true })
      await operator.listJobs({ ...query, after: middle, sinceMs: layout.nowMs - 3 * 24 * HOUR_MS })
    }
  }
  const work = { pool: 'inference', kind: 'generate', model: 'echo-1', priority: 'normal' } as const
  await operator.countAhead({ id: manyId(layout, layout.jobs), ...work })
  for (const state of [undefined, 'pending', 'failed', 'delivered'] as const) {
    await operator.listDeliveries({ limit: 100, state })
    const { deliveries } = await operator.listDeliveries({ limit: 100, state, tenant: 'key_b', after: 'evt_1' })
    for (const { id } of deliveries.slice(0, 2)) await operator.retryDelivery(id)
  }
  await operator.retryDelivery('evt_none')
  const target = { target: 'model', id: 'echo-1' } as const
  await operator.pause(target, 'key_a')
  await operator.listPauses()
  await operator.resume(target)
}

async function deliver(store: Store): Promise<void> {
  await store.pendingDeliveries()
  const taken = await store.takeDeliveries(32, 30_000)
  for (const delivery of taken) {
    await store.recordDelivery(delivery, { state: 'delivered', status: 200 })
    await store.listDeliveries(delivery.job_id)
  }
}
