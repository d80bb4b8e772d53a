import type { Reply } from '#services/ingress/reply/reply.ts'
import type { AnswerStream, Frame } from '#shared/kinds/answer.ts'

/** Where the output of a job comes from: {@link AttachedJob}, or what a durable one recorded. */
export interface Output {
  /** Set once there was output that a caller would notice. */
  readonly firstOutputAtMs: number | undefined
  /** Events, at least one; undefined after the last. @throws ServiceError When the job failed */
  next(): Promise<unknown[] | undefined>
}

/**
 * Says a job's output as it comes, until its end. The next is taken only when the last was said: so while the caller reads
 * slowly the job's own buffer fills, and pauses its worker.
 */
export async function sendStream(
  reply: Reply,
  output: Output,
  stream: AnswerStream,
  onEvent: (event: unknown) => void = () => {},
): Promise<void> {
  reply.open('stream')
  for (;;) {
    const events = await output.next()
    if (reply.hasLeft) return
    if (!events) break
    const frames: Frame[] = []
    for (const event of events) {
      onEvent(event)
      for (const frame of stream.push(event)) frames.push(frame)
    }
    // What comes before output (the start of a message) waits for it: the attempt may still fail cleanly.
    await reply.frames(frames, output.firstOutputAtMs !== undefined)
  }
  await reply.frames(stream.end())
}
