/** The thread that parses documents. A task of the type `start` gets no reply. Each other task gets one reply, in the order of the tasks. */
import { setPriority } from 'node:os'
import { parentPort } from 'node:worker_threads'
import { type ReadDocument, TextBuilder } from '#shared/search/text/builder.ts'
import { readMarkdown } from '#shared/search/text/markdown.ts'
import { readPlain } from '#shared/search/text/plain.ts'
import { decodeText, Unreadable } from './charset.ts'
import { type DocumentInput, type ThreadReply, type ThreadStart, type ThreadTask, usedBytesOf } from './message.ts'

const NICENESS = 10

/** The threads have a lower priority than the event loop. On systems other than Linux, `setPriority` would change the whole process. */
if (process.platform === 'linux') setPriority(NICENESS)

parentPort?.on('message', async (task: ThreadTask) => {
  if (task.type === 'start') await import('./html.ts')
  else parentPort?.postMessage(await answer(task))
})

async function answer(task: Exclude<ThreadTask, ThreadStart>): Promise<ThreadReply> {
  try {
    if (task.type === 'robots') return { isAllowed: (await import('./robots.ts')).allows(task) }
    return { document: await read(task) }
  } catch (error) {
    return { problem: error instanceof Unreadable ? error.message : 'The document is damaged.' }
  }
}

async function read({ type, bytes, charset, charsMax }: DocumentInput): Promise<ReadDocument> {
  const builder = new TextBuilder(charsMax)
  const bytesMax = usedBytesOf(type, charsMax)
  switch (type) {
    case 'markdown':
      readMarkdown(decodeText(bytes, charset, bytesMax), builder)
      return builder.build()
    case 'text':
      readPlain(decodeText(bytes, charset, bytesMax), builder)
      return builder.build()
    case 'html':
      return (await import('./html.ts')).readHtml(decodeText(bytes, charset, bytesMax), builder)
    case 'pdf':
      return await (await import('./pdf.ts')).readPdf(bytes, charsMax, builder)
    case 'docx':
      return await (await import('./docx.ts')).readDocx(bytes, builder)
  }
}
