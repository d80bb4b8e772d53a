import { openKafkaBroker } from '#shared/broker/kafka.ts'
import { startLocalKafka } from './test/support/kafka.ts'
import { Connection } from '@platformatic/kafka'
const sig = (process.argv[2] ?? 'SIGTERM') as 'SIGTERM'
const t00 = performance.now(); let verbose = false
const log = (...x: unknown[]) => console.log((performance.now() - t00).toFixed(0), ...x)
const orig = (Connection.prototype as any).send
;(Connection.prototype as any).send = function (key: number, ...rest: any[]) { const cb = rest.at(-1); const t = performance.now(); rest[rest.length - 1] = (e: any, r: any) => { if (verbose) { const s = e ? `ERR ${e.message} ${e.errors?.[0]?.apiId ?? ''}` : JSON.stringify(r, (k, v) => typeof v === 'bigint' ? Number(v) : v instanceof Map ? [...v.keys()].length : v)?.slice(0, 300); log(`<- ${key} conn${this.instanceId} ${(performance.now() - t).toFixed(0)}ms ${s}`) } cb(e, r) }; return orig.call(this, key, ...rest) }
const local = await startLocalKafka(); log(local.address)
const b = await openKafkaBroker({ brokers: [local.address], client: (process.argv[3] ?? 'share') as 'share', prefix: 'x.', clientId: 'x', topics: [{ name: 'jobs', partitions: 1, retentionMs: 3600_000, kind: 'queue' }, { name: 'replies', partitions: 2, retentionMs: 3600_000, kind: 'channel' }], onProblem: (m, f) => log('PROBLEM', m, JSON.stringify(f).slice(0, 300)) })
const q = await b.openQueue('jobs'); let done = 0, ev = 0, acc = 0, ref = 0
void (async () => { for (;;) for (const d of await q.take(10, new AbortController().signal)) { done++; d.acknowledge() } })()
await b.receive('replies', 1, () => ev++)
setInterval(() => { b.submit('jobs', Buffer.from('x')).then(() => acc++, () => ref++); b.send('replies', 1, 'k', Buffer.from('y')).catch(e => log('send', e.message)) }, 5)
setInterval(() => log({ done, ev, acc, ref, r: b.isReachable }), 1000)
await new Promise(r => setTimeout(r, 4000)); log('down'); await local.down(sig); log('is down'); await local.resume(); log('resumed'); verbose = true; setTimeout(() => { verbose = false }, 3000)
await new Promise(r => setTimeout(r, 9000)); verbose = done < 1
await new Promise(r => setTimeout(r, 500)); await local.stop(); process.exit()
