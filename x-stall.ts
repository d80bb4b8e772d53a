import { openKafkaBroker } from '#shared/broker/kafka.ts'
import dc from 'node:diagnostics_channel'
import { Connection } from '@platformatic/kafka'
const trace: string[] = []
const orig = (Connection.prototype as any).send
;(Connection.prototype as any).send = function (key: number, ...rest: any[]) { const cb = rest.at(-1); const t = performance.now(); trace.push(`${t.toFixed(0)} -> ${key} conn${this.instanceId}`); rest[rest.length - 1] = (e: any, r: any) => { const s = e ? `ERR ${e.message}` : JSON.stringify(r, (k, v) => typeof v === 'bigint' ? Number(v) : v instanceof Map ? [...v.keys()] : v)?.slice(0, 400); trace.push(`${performance.now().toFixed(0)} <- ${key} conn${this.instanceId} ${(performance.now() - t).toFixed(0)}ms ${s}`); cb(e, r) }; return orig.call(this, key, ...rest) }
for (let i = 0; i < 40; i++) {
  trace.length = 0
  const b = await openKafkaBroker({ brokers: ['127.0.0.1:27440'], client: 'share', prefix: `s${Date.now()}.`, clientId: 'x', topics: [{ name: 'jobs', partitions: 2, retentionMs: 3600_000, kind: 'queue' }, { name: 'replies', partitions: 4, retentionMs: 3600_000, kind: 'channel' }], onProblem: (m, f) => trace.push(`${performance.now().toFixed(0)} PROBLEM ${m} ${JSON.stringify(f)}`) })
  const q = await b.openQueue('jobs')
  const never = new AbortController().signal
  const t = performance.now()
  const one = async (v: string) => { trace.push(`${performance.now().toFixed(0)} submit ${v}`); await b.submit('jobs', Buffer.from(v)); for (;;) { const [d] = await q.take(1, never); if (d) return d; if (performance.now() - t > 6000) { console.log('STALL', v, i); console.log(trace.slice(-70).join('\n')); process.exit(1) } } }
  const a = await one('a'); a.acknowledge(); a.release()
  while ((await b.lag('jobs')) !== 0) { if (performance.now() - t > 6000) { console.log('LAG STALL', i); console.log(trace.slice(-70).join('\n')); process.exit(1) }; await new Promise(r => setTimeout(r, 10)) }
  const d = await one('b'); d.acknowledge()
  await b.close()
  process.stdout.write(`${(performance.now() - t).toFixed(0)} `)
}
process.exit()
