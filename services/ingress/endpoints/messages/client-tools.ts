import type { Tool } from '#schemas/generate.ts'

/*
 * Client tools of the Messages API, such as `bash`: the caller runs them, and the upstream has their schemas by type.
 * For upstreams of other APIs, each becomes a function with the schema from Anthropic's API reference. The caller then
 * receives the same tool calls.
 */

type Schema = Readonly<Record<string, unknown>>

interface ClientTool {
  readonly description: (tool: Schema) => string
  readonly parameters: Tool['parameters']
}

const string = (description: string) => ({ type: 'string', description })
const integer = (description: string) => ({ type: 'integer', description })
const numbers = (length: number, description: string) => ({
  ...{ type: 'array', items: { type: 'integer' }, minItems: length, maxItems: length },
  description,
})
const object = (properties: Schema, required: readonly string[]) => ({
  type: 'object',
  properties,
  required: [...required],
})

const BASH: ClientTool = {
  description: () => 'Runs a command in a persistent bash session and returns its output.',
  parameters: object(
    {
      command: string('The command. Not needed to restart.'),
      restart: { type: 'boolean', description: 'Restarts the session.' },
    },
    [],
  ),
}

const EDIT_FIELDS = {
  path: string('Absolute path of a file or folder.'),
  file_text: string('create: the content of the file.'),
  old_str: string('str_replace: the text to replace. Must occur exactly once.'),
  new_str: string('str_replace: the new text. insert, in older versions: the text to insert.'),
  insert_line: integer('insert: the line after which the text is inserted; 0: at the beginning.'),
  insert_text: string('insert: the text to insert.'),
  view_range: numbers(2, 'view: first and last line, from 1; a last line of -1 is the end of the file.'),
}

const TEXT_EDITOR: ClientTool = {
  description: () => 'Views, creates and edits text files.',
  parameters: object(
    { command: { type: 'string', enum: ['view', 'create', 'str_replace', 'insert', 'undo_edit'] }, ...EDIT_FIELDS },
    ['command', 'path'],
  ),
}

const MEMORY: ClientTool = {
  description: () => 'Reads and writes files of a memory below /memories that lasts between conversations.',
  parameters: object(
    {
      command: { type: 'string', enum: ['view', 'create', 'str_replace', 'insert', 'delete', 'rename'] },
      ...EDIT_FIELDS,
      old_path: string('rename: the path now.'),
      new_path: string('rename: the new path.'),
    },
    ['command'],
  ),
}

const ACTIONS = [
  ...['key', 'type', 'mouse_move', 'left_click', 'left_click_drag', 'right_click', 'middle_click', 'double_click'],
  ...[
    'triple_click',
    'left_mouse_down',
    'left_mouse_up',
    'scroll',
    'hold_key',
    'wait',
    'screenshot',
    'cursor_position',
    'zoom',
  ],
]

const COMPUTER: ClientTool = {
  description: ({ display_width_px: width, display_height_px: height }) =>
    `Uses the mouse and keyboard of a computer and takes screenshots. The screen has ${String(width)} × ${String(height)} pixels.`,
  parameters: object(
    {
      action: { type: 'string', enum: ACTIONS },
      coordinate: numbers(2, 'x and y in pixels, from the left and the top.'),
      start_coordinate: numbers(2, 'left_click_drag: where the drag begins.'),
      region: numbers(4, 'zoom: x and y of the upper left and of the lower right corner.'),
      text: string('key and hold_key: the key or combination, such as ctrl+s. type: the text. Clicks: a key to hold.'),
      duration: { type: 'number', description: 'hold_key and wait: seconds.' },
      scroll_direction: { type: 'string', enum: ['up', 'down', 'left', 'right'] },
      scroll_amount: integer('scroll: number of steps.'),
    },
    ['action'],
  ),
}

const CLIENT_TOOLS: readonly (readonly [type: RegExp, tool: ClientTool])[] = [
  [/^bash_\d{8}$/, BASH],
  [/^text_editor_\d{8}$/, TEXT_EDITOR],
  [/^memory_\d{8}$/, MEMORY],
  [/^computer_\d{8}$/, COMPUTER],
]

/** Function that replaces a client tool; undefined if the tool has another type. */
export function clientTool(
  tool: Schema & { readonly type: string },
): Pick<Tool, 'description' | 'parameters'> | undefined {
  const found = CLIENT_TOOLS.find(([type]) => type.test(tool.type))?.[1]
  return found && { description: found.description(tool), parameters: found.parameters }
}
