import { openKafkaBroker } from '#shared/broker/kafka.ts'
import { Connection } from '@platformatic/kafka'
const trace: string[] = []
const orig = (Connection.prototype as any).send
;(Connection.prototype as any).send = function (key: number, ...rest: any[]) { const cb = rest.at(-1); const t = performance.now(); trace.push(`${t.toFixed(1)} -> ${key} conn${this.instanceId}`); rest[rest.length - 1] = (e: any, r: any) => { const s = e ? `ERR ${e.message}` : JSON.stringify(r, (k, v) => typeof v === 'bigint' ? Number(v) : v instanceof Map ? [...v.keys()] : v instanceof Buffer || v?.type === 'Buffer' ? 0 : v)?.slice(0, 300); trace.push(`${performance.now().toFixed(1)} <- ${key} conn${this.instanceId} ${(performance.now() - t).toFixed(1)}ms ${s}`); if (trace.length > 200) trace.splice(0, 100); cb(e, r) }; return orig.call(this, key, ...rest) }
const options = { brokers: ['127.0.0.1:27440'], client: 'share' as const, prefix: `b${Date.now()}.`, clientId: 'bench', topics: [{ name: 'jobs', partitions: 1, retentionMs: 3600_000, kind: 'queue' as const }, { name: 'replies', partitions: 4, retentionMs: 600_000, kind: 'channel' as const }], onProblem: (m: string, f: unknown) => console.log('PROBLEM', m, f) }
const b = await openKafkaBroker(options)
let wake = () => {}
await b.receive('replies', 1, () => wake())
const q = await b.openQueue('jobs')
let takenAt = 0
void (async () => { for (;;) for (const d of await q.take(500, new AbortController().signal)) { takenAt = performance.now(); d.acknowledge(); void b.send('replies', 1, 'k', d.value) } })()
let slow = 0; const lat: number[] = []
for (let i = 0; i < 12000; i++) {
  const t = performance.now(); const got = new Promise<void>(r => { wake = r }); trace.push(`${t.toFixed(1)} call`)
  await b.submit('jobs', Buffer.alloc(1000)); const s = performance.now(); await got
  const d = performance.now() - t; lat.push(d)
  if (d > 150 && i > 100) { slow++; console.log('SLOW', i, d.toFixed(1), 'submit', (s - t).toFixed(1), 'taken', (takenAt - t).toFixed(1)); if (slow < 4) console.log(trace.slice(-14).join('\n')) }
}
lat.sort((a, c) => a - c); console.log('slow', slow, 'p50', lat[6000], 'p99', lat[11880]); process.exit()
