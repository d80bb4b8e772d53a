/** The thread that renders one template. The first message from the thread contains the template's capabilities. Each task then gets a reply, in order. */
import { parentPort, workerData } from 'node:worker_threads'
import {
  packPieces,
  type TemplateMessage,
  type TemplateSource,
  type ThreadReply,
  type ThreadTask,
} from './conversation.ts'
import { ChatTemplate, reasonOf, TemplateRefusal } from './render.ts'

const messages: TemplateMessage[] = []
const template = open()

function open(): ChatTemplate | undefined {
  try {
    const opened = new ChatTemplate(workerData as TemplateSource)
    reply({ forms: opened.forms })
    return opened
  } catch (error) {
    reply({ problem: reasonOf(error) })
    return undefined
  }
}

parentPort?.on('message', (task: ThreadTask) => {
  if ('add' in task) messages.push(...task.add)
  else reply(render(task.render))
})

function render(rest: Extract<ThreadTask, { render: unknown }>['render']): ThreadReply {
  try {
    return packPieces(template?.render({ ...rest, messages: messages.splice(0) }) ?? [])
  } catch (error) {
    return error instanceof TemplateRefusal ? { refusal: reasonOf(error) } : { problem: reasonOf(error) }
  }
}

function reply(message: ThreadReply): void {
  parentPort?.postMessage(message)
}
