/** Writes earlier days to the usage ledger of an embedded store, before a service opens the store. */

import { mkdtemp } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { UsageEntry } from '#shared/store/records.ts'
import { openSqliteStore } from '#shared/store/sqlite/sqlite.ts'

/** The UTC day some days ago, such as `2030-01-31`. */
export function dayAgo(days: number): string {
  return new Date(Date.now() - days * 86_400_000).toISOString().slice(0, 10)
}

/**
 * Returns a new data directory whose ledger has one call of $1 on each of several days. `days` has the number of days between each of them and today.
 *
 * @param more Fields that replace the default fields of each call
 */
export async function directoryWithDays(days: readonly number[], more: Partial<UsageEntry> = {}): Promise<string> {
  const directory = await mkdtemp(join(tmpdir(), 'sluice-test-'))
  const store = openSqliteStore({ directory, boot: 'earlier' })
  try {
    const named = { project: 'proj', keyId: 'proj', model: 'echo-1', endpoint: '/v1/chat/completions' }
    const amounts = { inputTokens: 10, cachedInputTokens: 0, outputTokens: 10, audioMs: 0, costNanos: 1_000_000_000 }
    const entries = days.map((day) => ({
      ...named,
      ...amounts,
      hour: `${dayAgo(day)}T00`,
      calls: 1,
      failed: 0,
      ...more,
    }))
    await store.usage.add('earlier', 1, entries)
  } finally {
    await store.close()
  }
  return directory
}
