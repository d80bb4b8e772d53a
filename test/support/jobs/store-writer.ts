/**
 * A process that writes several jobs at once to a store, as fast as possible, until the test kills it. The test then checks that the store has
 * every write that was printed. Argument: directory of the store. Printed lines: `created <id>`, `appended <id> <seq>`, `completed <id> <seq>`.
 */
import { writeSync } from 'node:fs'
import { newJobId } from '#shared/store/jobs.ts'
import { openSqliteStore } from '#shared/store/sqlite/sqlite.ts'

const directory = process.argv[2] ?? ''
const owner = `boot_${process.pid}`
const store = openSqliteStore({ directory, boot: owner })
await store.renew({ boot: owner, role: 'inference', slots: 1, version: 'test', draining: false, leaseMs: 60_000 })
// Writes synchronously, so that no line is lost in a buffer when the process is killed. Each printed line was acknowledged by the store before.
const print = (line: string) => writeSync(1, `${line}\n`)

await Promise.all([1, 2, 3, 4].map(writeForEver))

async function writeForEver(): Promise<never> {
  for (;;) await writeOne()
}

async function writeOne(): Promise<void> {
  const id = newJobId()
  await store.create({
    id,
    tenant: 'key_a',
    pool: 'inference',
    kind: 'generate',
    endpoint: '/v1/chat/completions',
    model: 'echo-1',
    request: null,
    deadlineInMs: 60_000,
    retentionMs: 86_400_000,
  })
  print(`created ${id}`)
  const claim = await store.claim(id, owner)
  const run = { id, attempt: claim?.job.attempt ?? 0, boot: owner }
  for (let chunk = 0; chunk < 3; chunk++) {
    const moved = await store.append({ ...run, chunk }, [{ type: 'job.output.delta', data: chunk }])
    print(`appended ${id} ${moved?.job.last_seq}`)
  }
  const end = await store.complete({ ...run, chunk: 3 }, { result: id })
  print(`completed ${id} ${end?.job.last_seq}`)
}
