import { signal } from '@preact/signals'
import { fetchJson, messageOf } from '#services/console/api/client.ts'
import type { Page, Worker } from '#services/console/api/types.ts'

/** All processes of the fleet that send heartbeats, sorted by pool. */
export const workers = signal<readonly Worker[]>([])
export const isLoaded = signal(false)
export const problem = signal('')

export async function refresh(abort?: AbortSignal): Promise<void> {
  try {
    const { data } = await fetchJson<Page<Worker>>('/v1/admin/workers', abort ? { signal: abort } : {})
    workers.value = data
    isLoaded.value = true
    problem.value = ''
  } catch (error) {
    if (!abort?.aborted) problem.value = messageOf(error)
  }
}

/** Drains or undrains a worker. @throws ApiFailure, also if the worker does not confirm */
export async function setDrained({ id }: Worker, isDrained: boolean): Promise<void> {
  await fetchJson(`/v1/admin/workers/${encodeURIComponent(id)}/${isDrained ? 'drain' : 'undrain'}`, { method: 'POST' })
  await refresh()
}

export function stateOf({ slots, silent, draining, running }: Worker): string {
  if (silent) return 'unresponsive'
  // The ingress and the scheduler have no slots.
  if (slots === 0) return 'alive'
  if (draining) return running > 0 ? 'draining' : 'drained'
  return running > 0 ? 'active' : 'idle'
}

/** Whether no other worker of the pool accepts jobs. */
export function isOnlyActive({ id, role }: Worker): boolean {
  return !workers.value.some((other) => other.role === role && other.id !== id && !other.draining && !other.silent)
}
