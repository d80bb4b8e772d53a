import { openKafkaBroker } from '#shared/broker/kafka.ts'
const client = (process.argv[2] ?? 'share') as 'share'
const options = { brokers: ['127.0.0.1:27440'], client, prefix: `b${Date.now()}.`, clientId: 'bench', topics: [{ name: 'jobs', partitions: 1, retentionMs: 3600_000, kind: 'queue' as const }, { name: 'replies', partitions: 4, retentionMs: 600_000, kind: 'channel' as const }], onProblem: (m: string, f: unknown) => console.log('PROBLEM', m, f) }
const ingress = await openKafkaBroker(options), worker = await openKafkaBroker(options)
console.log(ingress.name)
const waiting = new Map<string, () => void>()
const receiver = await ingress.receive('replies', 1, (r) => { waiting.get(r.key)?.(); waiting.delete(r.key) })
const queue = await worker.openQueue('jobs')
const stop = new AbortController()
let takes = 0, taken = 0
const loop = (async () => { while (!stop.signal.aborted) { const ds = await queue.take(500, stop.signal); takes++; taken += ds.length; for (const d of ds) { d.acknowledge(); void worker.send('replies', 1, d.value.subarray(0, 20).toString().trim(), d.value) } } })()
let n = 0
const call = () => { const id = `j${n++}`; const t = performance.now(); return new Promise<number>((ok, no) => { waiting.set(id, () => ok(performance.now() - t)); const b = Buffer.alloc(1000, 32); b.write(id); ingress.submit('jobs', b).catch(no) }) }
const t0 = performance.now(); await call(); console.log('first', performance.now() - t0)
const run = async (name: string, total: number, par: number) => { const lat: number[] = []; let left = total; const t = performance.now(); const cpu = process.cpuUsage(); takes = taken = 0; await Promise.all(Array.from({ length: par }, async () => { while (left-- > 0) lat.push(await call()) })); const ms = performance.now() - t; const c = process.cpuUsage(cpu); lat.sort((a, b) => a - b); const q = (p: number) => lat[Math.floor(lat.length * p)]!.toFixed(2); console.log(name, 'rate', Math.round(total / ms * 1000), 'p50', q(.5), 'p95', q(.95), 'p99', q(.99), 'max', lat.at(-1)!.toFixed(1), 'takes', takes, 'cpu ms/call', ((c.user + c.system) / 1000 / total).toFixed(3)) }
await run('warm', 300, 1); await run('warm', 3000, 50)
await run('one', 1000, 1); await run('100', 10000, 100); await run('500', 40000, 500)
console.log('lag', await worker.lag('jobs')); await new Promise(r => setTimeout(r, 600)); console.log('lag', await worker.lag('jobs'))
stop.abort(); await loop
const t1 = performance.now(); await queue.close(); console.log('queue closed', performance.now() - t1); await receiver.close(); console.log('receiver closed', performance.now() - t1); await worker.close(); await ingress.close(); console.log('closed', performance.now() - t1)
