import { signal } from '@preact/signals'
import { askJson, wordsOf } from '#services/console/api/client.ts'
import type { Page, Worker } from '#services/console/api/types.ts'

/** The processes that are alive, by pool. */
export const workers = signal<readonly Worker[]>([])
export const isLoaded = signal(false)
export const problem = signal('')

/** Asks who is alive now. */
export async function look(abort?: AbortSignal): Promise<void> {
  try {
    const { data } = await askJson<Page<Worker>>('/v1/admin/workers', abort ? { signal: abort } : {})
    workers.value = data
    isLoaded.value = true
    problem.value = ''
  } catch (error) {
    if (!abort?.aborted) problem.value = wordsOf(error)
  }
}

/** Lets a worker take nothing more, or jobs again. @throws ApiFailure where it did not confirm it */
export async function setDrained({ id }: Worker, isDrained: boolean): Promise<void> {
  await askJson(`/v1/admin/workers/${encodeURIComponent(id)}/${isDrained ? 'drain' : 'undrain'}`, { method: 'POST' })
  await look()
}

/** Where a worker is, in a word. */
export function stateOf({ slots, silent, draining, running }: Worker): string {
  if (silent) return 'silent'
  // The ingress and the scheduler take no jobs.
  if (slots === 0) return 'alive'
  if (draining) return running > 0 ? 'draining' : 'drained'
  return running > 0 ? 'working' : 'idle'
}

/** Whether nobody else takes the jobs of its pool. */
export function isLast({ id, role }: Worker): boolean {
  return !workers.value.some((other) => other.role === role && other.id !== id && !other.draining && !other.silent)
}
