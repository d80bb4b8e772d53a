/** A process with a local model server, for tests that kill it. When a transcription is running, the process prints the pid of the server. */
import { readFile } from 'node:fs/promises'
import { form, openServer } from './running.ts'

const local = openServer()
const file = await readFile(process.argv[2] ?? '')
for await (const event of local.events(
  '/v1/audio/transcriptions',
  form({ model: 'whisper-tiny.en', stream: 'true', file }),
)) {
  if (event.type === 'sluice.segment') process.stdout.write(`${local.server.pid}\n`)
}
