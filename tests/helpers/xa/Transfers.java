import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.util.ArrayList;
import java.util.List;
import javax.sql.XADataSource;

/**
 * Transfers between databases under a transaction manager.
 *
 *     java Transfers MANAGER FOLDER URL URL
 *
 * Each line of stdin is a command, and is answered by a line:
 *
 *     transfer NAME AMOUNT   committed NAME
 *     hold METHOD            holding METHOD: the next transfer stands still before its second call of it
 *     recover                recovered
 *
 * The manager's log is in the folder, and outlasts the process.
 */
public final class Transfers {
    /** What a transaction manager does here. */
    interface Manager {
        void begin() throws Exception;

        Connection connect(int database) throws Exception;

        void commit() throws Exception;

        /** Ends what an earlier life has left in doubt, as far as that is due. */
        void recover() throws Exception;
    }

    public static void main(String[] arguments) throws Exception {
        Branches branches = new Branches();
        List<XADataSource> sources = new ArrayList<>();
        for (int n = 2; n < arguments.length; n++) {
            sources.add(branches.open(arguments[n]));
        }
        Manager manager = (Manager) Class.forName(arguments[0])
            .getDeclaredConstructor(String.class, List.class).newInstance(arguments[1], sources);
        answer("ready");
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = commands.readLine()) != null; ) {
            String[] words = line.split(" ");
            switch (words[0]) {
                case "transfer" -> {
                    transfer(manager, words[1], Integer.parseInt(words[2]), sources.size());
                    answer("committed " + words[1]);
                }
                case "hold" -> {
                    branches.holdAtSecond(words[1]);
                    answer("holding " + words[1]);
                }
                case "recover" -> {
                    manager.recover();
                    answer("recovered");
                }
                default -> throw new IllegalArgumentException(line);
            }
        }
        Runtime.getRuntime().halt(0);
    }

    static void answer(String line) {
        System.out.println(line);
        System.out.flush();
    }

    private static void transfer(Manager manager, String name, int amount, int databases) throws Exception {
        manager.begin();
        for (int n = 0; n < databases; n++) {
            Connection connection = manager.connect(n);
            String insert = "INSERT INTO transfer VALUES (?, 1, ?)";
            try (PreparedStatement statement = connection.prepareStatement(insert)) {
                statement.setString(1, name);
                statement.setInt(2, n == 0 ? amount : -amount);
                statement.executeUpdate();
            }
            connection.close();
        }
        manager.commit();
    }
}
