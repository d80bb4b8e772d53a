import { createHash } from 'node:crypto'
import { BUDGET_EVENT, type BudgetEventData } from '#schemas/usage.ts'
import { budgetStateOf, budgetsIn } from '#shared/capacity/budgets.ts'
import type { KeyStore } from '#shared/keys/keys.ts'
import type { UsageLedger } from '#shared/store/records.ts'
import { monthOf, NANOS_PER_USD } from '#shared/usage/usage.ts'

/*
 * Alerts when 80 % and 100 % of a monthly budget are spent, as webhook messages to one URL of the operator.
 *
 * The id of a message is a hash of the budget, its amount, the month and the threshold. The store ignores a message with a known id, so each alert
 * is sent once, although several schedulers run and restart. A raised budget alerts again at its new thresholds. If a budget passes both thresholds
 * between two rounds, then only the higher one is reported.
 */

export const THRESHOLDS = [100, 80] as const
/** Maximum budgets per read of the ledger. */
const BATCH_MAX = 500
/** Time after the end of the month for which the messages are stored, so that no message is sent twice. */
const RETENTION_MS = 7 * 86_400_000

interface AlertOptions {
  readonly keys: Pick<KeyStore, 'list' | 'listProjects'>
  readonly ledger: Pick<UsageLedger, 'spent' | 'addAlert'>
  readonly url: string
}

/**
 * Returns a function that stores the alerts of all budgets that have passed a threshold, and returns the number of new alerts.
 *
 * The function runs every few seconds. The store would ignore a message that it already has, but each write is costly. A process therefore
 * remembers the messages that it has written, and writes none of them again.
 */
export function budgetAlerts(options: AlertOptions): (nowMs: number) => Promise<number> {
  const written = new Set<string>()
  let month = ''
  return async (nowMs) => {
    if (month !== monthOf(nowMs).name) written.clear()
    month = monthOf(nowMs).name
    return await addAlerts(options, written, nowMs)
  }
}

async function addAlerts({ keys, ledger, url }: AlertOptions, written: Set<string>, nowMs: number): Promise<number> {
  const budgets = budgetsIn({ keys: await keys.list(), projects: await keys.listProjects() }, nowMs)
  const month = monthOf(nowMs)
  let added = 0
  for (let from = 0; from < budgets.length; from += BATCH_MAX) {
    const some = budgets.slice(from, from + BATCH_MAX)
    const spent = await ledger.spent(some, month.from, month.to)
    for (const [nth, budget] of some.entries()) {
      const costNanos = spent[nth]?.costNanos ?? 0
      const threshold = THRESHOLDS.find((percent) => isReached(costNanos, budget.usd, percent))
      if (threshold === undefined) continue
      const state = { ...budgetStateOf(budget, costNanos, month), name: budget.name }
      const data: BudgetEventData = { ...state, project: budget.project, threshold_percent: threshold }
      const { owner, id, usd, project } = budget
      const key = JSON.stringify([owner, id, usd, month.name, threshold])
      const message = `evt_${createHash('sha256').update(key).digest('hex').slice(0, 32)}`
      if (written.has(message)) continue
      const purgeAtMs = month.endsAtMs + RETENTION_MS
      const isNew = await ledger.addAlert({ id: message, tenant: project, url, type: BUDGET_EVENT, data, purgeAtMs })
      written.add(message)
      if (isNew) added++
    }
  }
  return added
}

/** A budget of $0 accepts no call, so it reaches no threshold. */
function isReached(costNanos: number, usd: number, percent: number): boolean {
  return usd > 0 && costNanos * 100 >= usd * NANOS_PER_USD * percent
}
