/* Tests of budget alerts: each is sent once per budget, threshold and month, and is signed like other webhooks. */

import { mkdtemp, rm } from 'node:fs/promises'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import OpenAI from 'openai'
import { describe, expect, inject, it, onTestFinished } from 'vitest'
import { budgetAlerts } from '#services/scheduler/budget-alerts.ts'
import { signingKeys } from '#services/scheduler/webhook-secret.ts'
import { WebhookSender } from '#services/scheduler/webhooks.ts'
import { openFileKeys } from '#shared/keys/file.ts'
import { keyOf, newProject } from '#shared/keys/keys.ts'
import { webhookSecretsOf } from '#shared/keys/webhook-secrets.ts'
import { Metrics } from '#shared/lib/metrics.ts'
import type { UsageLedger } from '#shared/store/records.ts'
import { hourOf } from '#shared/usage/usage.ts'
import { silentLog } from '../../support/jobs/jobs.ts'
import { openPostgresDatabase, openSqliteDatabase } from '../../support/jobs/stores.ts'
import { until } from '../../support/stack.ts'

const postgres = inject('postgres')
const ADAPTERS = [
  { name: 'sqlite', isHere: true, openDatabase: openSqliteDatabase },
  { name: 'postgres', isHere: postgres !== null, openDatabase: () => openPostgresDatabase(postgres ?? '') },
]
const NOW_MS = Date.UTC(2030, 0, 31, 23, 59)
const USD = 1_000_000_000

describe.each(ADAPTERS)('budget alerts on $name', ({ isHere, openDatabase }) => {
  async function open() {
    const database = await openDatabase()
    onTestFinished(() => database[Symbol.asyncDispose]())
    const store = await database.open()
    const directory = await mkdtemp(join(tmpdir(), 'sluice-alerts-'))
    onTestFinished(() => rm(directory, { recursive: true }))
    const keys = openFileKeys(directory)
    const limits = { budget_usd_per_month: 10 }
    await keys.createProject(newProject({ id: 'proj_lab', name: 'lab', limits }))
    await keys.create(keyOf('sk-lab-0123456789', { id: 'key_lab', project: 'proj_lab', limits }))
    await keys.create(keyOf('sk-none-0123456789', { id: 'key_none', limits: { budget_usd_per_month: 0 } }))
    let batch = 0
    const spend = async (usd: number, nowMs = NOW_MS) => {
      const amounts = { calls: 1, failed: 0, inputTokens: 0, cachedInputTokens: 0, outputTokens: 0, audioMs: 0 }
      const whose = { project: 'proj_lab', keyId: `key_${batch}`, model: 'm', endpoint: '/v1/chat/completions' }
      await store.usage.add('ing', ++batch, [{ ...amounts, ...whose, hour: hourOf(nowMs), costNanos: usd * USD }])
    }
    const receiver = createServer((req, res) => {
      let body = ''
      req.setEncoding('utf8').on('data', (piece) => {
        body += piece
      })
      req.on('end', () => {
        received.push({ headers: req.headers as Record<string, string>, body })
        res.end()
      })
    })
    const received: { headers: Record<string, string>; body: string }[] = []
    await new Promise<void>((resolve) => receiver.listen(0, '127.0.0.1', resolve))
    onTestFinished(() => void receiver.close())
    const url = `http://127.0.0.1:${(receiver.address() as AddressInfo).port}/alerts`
    const openScheduler = (ledger: Pick<UsageLedger, 'spent' | 'addAlert'> = store.usage) => {
      const addAlerts = budgetAlerts({ keys, ledger, url })
      return (nowMs = NOW_MS) => addAlerts(nowMs)
    }
    return { store, keys, spend, openScheduler, alert: openScheduler(), received }
  }

  it.skipIf(!isHere)(
    'are sent once per threshold and month, and are repeated after the budget was raised',
    async () => {
      const { keys, spend, alert, openScheduler } = await open()
      expect(await alert()).toBe(0)
      await spend(7.9)
      expect(await alert()).toBe(0)
      await spend(0.1)
      // Two schedulers check the budget at the same time. Only one of them may add the alert.
      expect((await Promise.all([alert(), openScheduler()()])).toSorted()).toEqual([0, 1])
      expect([await alert(), await openScheduler()()]).toEqual([0, 0])
      await spend(2)
      expect([await alert(), await alert()]).toEqual([1, 0])
      await keys.updateProject('proj_lab', { limits: { budget_usd_per_month: 12 } })
      expect([await alert(), await alert()]).toEqual([1, 0])
      const nextMs = Date.UTC(2030, 1, 1)
      expect(await alert(nextMs)).toBe(0)
      await spend(100, nextMs)
      expect([await alert(nextMs), await alert(nextMs)]).toEqual([1, 0])
    },
  )

  it.skipIf(!isHere)('are not written a second time by the same scheduler', async () => {
    const { store, spend, openScheduler } = await open()
    let writes = 0
    const addAlert: UsageLedger['addAlert'] = async (given) => {
      writes++
      return await store.usage.addAlert(given)
    }
    const alert = openScheduler({ spent: (...query) => store.usage.spent(...query), addAlert })
    await spend(9)
    expect([await alert(), await alert(), await alert(NOW_MS + 3_600_000), writes]).toEqual([1, 0, 0, 1])
  })

  it.skipIf(!isHere)(
    'name the budget and its remaining amount, and are signed with a secret of the project',
    async () => {
      const { store, keys, spend, alert, received } = await open()
      await spend(8.5)
      expect(await alert()).toBe(1)
      const sender = new WebhookSender({
        ...{ store, log: silentLog, metrics: new Metrics(), version: '1.0.0', keysOf: signingKeys(keys, undefined) },
        policy: { allowPrivate: true },
      })
      await until(async () => {
        await sender.sendDue(new AbortController().signal)
        return received.length > 0
      })
      await sender.drain(AbortSignal.timeout(5_000))
      const [message] = received
      const [{ secret }] = await webhookSecretsOf(keys, 'proj_lab')
      const client = new OpenAI({ apiKey: 'none', webhookSecret: secret })
      const event = await client.webhooks.unwrap(message?.body ?? '', message?.headers ?? {})
      expect(event).toMatchObject({
        ...{ object: 'event', type: 'budget.threshold_reached' },
        data: {
          ...{ owner: 'project', id: 'proj_lab', name: 'lab', project: 'proj_lab', threshold_percent: 80 },
          ...{ month: '2030-01', budget_usd: 10, spent_usd: 8.5, remaining_usd: 1.5 },
        },
      })
      const { deliveries } = await store.operator.listDeliveries({ limit: 10, state: 'delivered' })
      expect(deliveries.map(({ type, tenant, tries }) => [type, tenant, tries])).toEqual([
        ['budget.threshold_reached', 'proj_lab', 1],
      ])
    },
  )
})
