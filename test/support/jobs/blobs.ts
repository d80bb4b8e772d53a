import { Readable } from 'node:stream'
import { buffer } from 'node:stream/consumers'
import type { Blobs } from '#shared/blobs/blobs.ts'
import { ServiceError } from '#shared/lib/error.ts'

/** In-memory blobs, for tests that inspect them. */
export function memoryBlobs(kept = new Map<string, Buffer>()): Blobs {
  const get = async (key: string) => {
    const value = kept.get(key)
    if (!value) throw new ServiceError('not_found', 'gone')
    return value
  }
  return {
    get,
    put: async (key, value) => void kept.set(key, Buffer.isBuffer(value) ? value : await buffer(value)),
    copy: async (from, to) => void kept.set(to, await get(from)),
    size: async (key) => (await get(key)).length,
    open: async (key) => Readable.from([await get(key)]),
    identity: async () => 'memory',
    delete: async (key) => void kept.delete(key),
    sweep: async (_ageMs, choose = async (old) => old.map(({ key }) => key)) => {
      const chosen = await choose([...kept.keys()].map((key) => ({ key, ageMs: Number.POSITIVE_INFINITY })))
      for (const key of chosen) kept.delete(key)
      return chosen.length
    },
  }
}
